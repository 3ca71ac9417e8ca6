"""Running a command with its output passed through as it comes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from controlplane.cli.operation import Cli
from controlplane.cli.output import clean, note, print_json
from warmpool import CommandHandle, CommandResult, Sandbox, SandboxException

INPUT_PIECE_BYTES = 64 * 1024


def stream_command(
    cli: Cli,
    sandbox: Sandbox,
    words: list[str],
    *,
    cwd: str | None = None,
    timeout: float | None = None,
    stdin: bool = False,
) -> int:
    """Run it, pass its output through (with JSON: print one document at the end); its exit code.

    When interrupted, the command is cancelled before the interrupt goes on."""
    on_stdout, on_stderr = (None, None) if cli.json else (writer("stdout"), writer("stderr"))
    command = words[0] if len(words) == 1 else words
    if stdin:
        handle = sandbox.commands.run(command, background=True, stdin=True, cwd=cwd, timeout=timeout)
        result = _wait_with_input(handle, on_stdout, on_stderr)
    else:
        result = sandbox.commands.run(
            command, cwd=cwd, timeout=timeout, check=False, on_stdout=on_stdout, on_stderr=on_stderr
        )
    told(result)
    if cli.json:
        print_json(document(sandbox, result))
    return result.exit_code


def told(result: CommandResult) -> None:
    """Say on standard error what an exit code alone does not tell."""
    if result.error:
        note(clean(result.error))
    elif result.reason not in ("exit", "signal"):
        note(f"the command was ended: {result.reason}")
    if result.survivors:
        note(f"{len(result.survivors)} of its processes still run")


def document(sandbox: Sandbox, result: CommandResult) -> dict[str, object]:
    return {
        "session": sandbox.id,
        "start": sandbox.start,
        "start_reason": sandbox.start_reason,
        "timings_ms": sandbox.timings_ms,
        "command": result.status.id,
        "exit_code": result.exit_code,
        "reason": result.reason,
        "error": result.error,
        "duration_s": result.duration_s,
        "omitted_bytes": result.omitted_bytes,
        "survivors": list(result.survivors),
        "stdout": result.stdout,
        "stderr": result.stderr,
    }


def writer(name: str) -> Callable[[str], None]:
    """Writes text to a standard stream at once. A reader that went away raises BrokenPipeError."""
    stream = getattr(sys, name)

    def write(text: str) -> None:
        stream.write(text)
        stream.flush()

    return write


def _wait_with_input(
    handle: CommandHandle, on_stdout: Callable[[str], None] | None, on_stderr: Callable[[str], None] | None
) -> CommandResult:
    feeder = threading.Thread(target=_feed, args=(handle,), daemon=True)
    feeder.start()
    try:
        return handle.wait(on_stdout, on_stderr, check=False)
    except BaseException as error:
        if not isinstance(error, SandboxException):
            handle.cancel()
        raise


def _feed(handle: CommandHandle) -> None:
    """Standard input to the command's, until either ends. Input that the command no longer takes is dropped,
    as a shell's pipe would."""
    try:
        while piece := os.read(sys.stdin.fileno(), INPUT_PIECE_BYTES):
            handle.send_stdin(piece)
        handle.close_stdin()
    except (SandboxException, OSError, RuntimeError) as error:
        if handle.exit_code is None and isinstance(error, SandboxException) and error.status not in (404, 409):
            note(f"standard input could not be sent: {error}")
