"""The control plane's side of the sandboxd protocol.

Belongs here: reaching a door safely, tokens, typed calls, errors as ``controlplane.errors``. Called by
sessions (bind), provisioning (readiness, build steps), the reaper (who holds a sandbox), and the API's
exec and files routes.
"""
