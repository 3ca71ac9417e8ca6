"""What requests and answers look like, as Pydantic models: the source of the OpenAPI document.

Belongs here: form only (types, sizes as text, unknown fields refused). Whether a value makes sense is the
services' to say, with a code of its own.
"""
