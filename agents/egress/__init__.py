"""The way out of a sandbox: a proxy process on the host with one listener, a door, per sandbox.

Belongs here: who may reach what (``policy``), reading hostile requests (``names``, ``head``), dialling only
checked addresses (``addresses``, ``dial``, ``upstream_proxy``), carrying bytes (``relay``, ``forward``), the
listeners (``listener``, ``door``), their control socket and state (``control``, ``registry``, ``state``) and the
record of what was refused (``audit``). Who is calling is known from the door, never from a header.

Does not belong here: anything that runs inside a sandbox, and knowledge of sessions or templates. The control
plane starts it as ``python -m agents.egress`` and talks to it by the control socket (types in
``agents.wire.egress``). Nothing here imports ``controlplane``.
"""
