"""Who calls, and what a tenant may use: API keys and quotas.

Belongs here: minting, parsing and proving keys, tenants' limits, which tenant a caller may act for. Does
not belong here: HTTP headers and status codes (``api``), where it is kept (``store``). Called by the API,
and by the CLI for the first key of a deployment.
"""
