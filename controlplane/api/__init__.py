"""The HTTP face: schemas, routes, authentication, errors as problem details. No logic.

Belongs here: parsing and serialising, which role may call what, streams as SSE and NDJSON, and the metrics
page. Does not belong here: any decision (the services). Built by ``bootstrap`` with ``create_app``.
"""
