"""sandboxd: the daemon in each sandbox, usually its pid 1, behind the door that the host opened for it.

Belongs here: what happens inside one sandbox on request (bind, commands, files, a nested Docker
Engine, the way out), and the duties of pid 1 (reaping, orderly stop). Does not belong here: choosing
sandboxes, tenants, policy, limits of the sandbox itself; those stand outside, where a sandbox
cannot reach them. Called by the control plane only, over ``agents.wire``'s protocol. Imports only
``agents.wire``, starlette, uvicorn and msgspec, since it is shipped in a bundle of its own.
"""

VERSION = "0.1.0"
