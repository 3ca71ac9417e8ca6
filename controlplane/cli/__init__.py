"""The ``warmpool`` command: thin over the SDK.

Belongs here: parsing arguments, progress, tables, JSON, exit codes. Does not belong here: any logic of the
service, which it reaches over HTTP as every other client does. Heavy imports happen inside commands, so that
``warmpool --help`` is quick.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``warmpool`` program."""
    from controlplane.cli.app import build_app

    build_app()(prog_name="warmpool")
