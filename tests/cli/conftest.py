"""The CLI against the SDK's contract server."""

from tests.sdk.conftest import served, server

__all__ = ["served", "server"]
