"""The few commands a simulated sandbox knows, worked out in full before they start.

A command's course (what it prints when, how it ends) is a pure function of what was asked for. So nothing
runs in the background, and every process of the control plane sees the same command at the same point.
What is not known here is not pretended: exit 127, and stderr says that the sandbox is simulated.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from agents.wire import ExecStart

_JOINERS = frozenset({";", "&&", "||"})
_LONGEST_SLEEP_S = 1e9


class Chunk(msgspec.Struct, frozen=True):
    at_s: float
    stream: Literal["stdout", "stderr"]
    text: str


class Course(msgspec.Struct, frozen=True):
    """Offsets in seconds from the start; ``code`` is the exit code at ``duration_s``."""

    chunks: list[Chunk]
    code: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one program does; given by a test for a program that is not known here."""

    code: int = 0
    stdout: str = ""
    stderr: str = ""
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """``read_file``: content of an absolute path, None when missing. ``programs``: further ones by name."""

    env: Mapping[str, str]
    cwd: str
    read_file: Callable[[str], bytes | None]
    programs: Mapping[str, Outcome] = field(default_factory=dict)


def course_of(start: ExecStart, surroundings: Surroundings) -> Course:
    """The whole course of ``start``; exactly one of its script and argv is given."""
    if start.argv is not None:
        outcomes: Iterator[Outcome] = iter([_run(start.argv, start.stdin or "", surroundings)])
    else:
        outcomes = _script(start.script or "", start.stdin or "", surroundings)
    chunks: list[Chunk] = []
    code, at_s = 0, 0.0
    for outcome in outcomes:
        at_s += outcome.duration_s
        code = outcome.code
        streams: tuple[tuple[Literal["stdout", "stderr"], str], ...] = (
            ("stdout", outcome.stdout),
            ("stderr", outcome.stderr),
        )
        chunks += [Chunk(at_s, stream, text) for stream, text in streams if text]
    return Course(chunks, code, at_s)


def _script(script: str, stdin: str, surroundings: Surroundings) -> Iterator[Outcome]:
    commands = _parse(script)
    if commands is None:
        yield _unknown(script)
        return
    code = 0
    for joiner, words in commands:
        if (joiner == "&&" and code != 0) or (joiner == "||" and code == 0):
            continue
        if words[0] == "exit":
            yield _exit(words[1:], code)
            return
        outcome = _run(words, stdin, surroundings)
        yield outcome
        code = outcome.code


def _parse(script: str) -> list[tuple[str, list[str]]] | None:
    """(joiner before it, words) per simple command; None for syntax beyond ``;``, ``&&``, ``||`` and quotes."""
    if "$" in script or "`" in script:
        return None
    commands: list[tuple[str, list[str]]] = []
    for line in script.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            tokens = list(lexer)
        except ValueError:
            return None
        joiner, words = ";", list[str]()
        for token in [*tokens, ";"]:
            if token in _JOINERS:
                if words:
                    commands.append((joiner, words))
                joiner, words = token, []
            elif token and set(token) <= set("();<>|&"):
                return None
            else:
                words.append(token)
    return commands


def _run(words: Sequence[str], stdin: str, surroundings: Surroundings) -> Outcome:
    name, arguments = (words[0], list(words[1:])) if words else ("", [])
    if name in surroundings.programs:
        return surroundings.programs[name]
    match name, arguments:
        case "true" | ":", _:
            return Outcome()
        case "false", _:
            return Outcome(code=1)
        case "exit", _:
            return _exit(arguments, 0)
        case "echo", _:
            return Outcome(stdout=" ".join(arguments) + "\n")
        case "pwd", []:
            return Outcome(stdout=surroundings.cwd + "\n")
        case "sleep", [seconds]:
            return _sleep(seconds)
        case "printenv", [variable]:
            value = surroundings.env.get(variable)
            return Outcome(code=1) if value is None else Outcome(stdout=value + "\n")
        case "cat", []:
            return Outcome(stdout=stdin)
        case "cat", [path]:
            return _cat(path, surroundings)
        case "sh" | "bash", ["-c" | "-lc", script]:
            return _whole(_script(script, stdin, surroundings))
        case _:
            return _unknown(" ".join(words))


def _exit(arguments: Sequence[str], code: int) -> Outcome:
    if not arguments:
        return Outcome(code=code)
    if arguments[0].isdecimal():
        return Outcome(code=int(arguments[0]) & 0xFF)
    return Outcome(code=2, stderr=f"exit: {arguments[0]}: numeric argument required\n")


def _sleep(text: str) -> Outcome:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_SLEEP_S:
        return Outcome(code=1, stderr=f"sleep: invalid time interval '{text}'\n")
    return Outcome(duration_s=seconds)


def _cat(path: str, surroundings: Surroundings) -> Outcome:
    whole = path if path.startswith("/") else f"{surroundings.cwd.rstrip('/')}/{path}"
    data = surroundings.read_file(whole)
    if data is None:
        return Outcome(code=1, stderr=f"cat: {path}: No such file or directory\n")
    return Outcome(stdout=data.decode(errors="replace"))


def _whole(outcomes: Iterator[Outcome]) -> Outcome:
    parts = list(outcomes)
    return Outcome(
        code=parts[-1].code if parts else 0,
        stdout="".join(part.stdout for part in parts),
        stderr="".join(part.stderr for part in parts),
        duration_s=sum(part.duration_s for part in parts),
    )


def _unknown(command: str) -> Outcome:
    return Outcome(
        code=127,
        stderr=f"{command[:80]}: this sandbox is simulated and knows only true, false, echo, cat, printenv, "
        "pwd, sleep, exit and ';', '&&', '||' between them\n",
    )
