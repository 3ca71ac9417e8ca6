"""Reading a file of templates and pools, with the line of everything that is wrong with it.

```yaml
templates:
  demo:
    repository: {url: https://git.example/demo.git, ref: main}
    setup: ["pip install -e .", {run: make assets, timeout_s: 120}]
    resources: {memory_bytes: 512Mi, cpu_cores: 1}
pools:
  demo: {template: demo, min_ready: 2, max_total: 10}
```

The form is checked here, before anything is sent; what the values mean is the service's to judge.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from controlplane.cli.sizes import parse_size

MAX_BYTES = 4 * 1024 * 1024
_INT, _FLOAT, _BOOL, _NULL = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "bool", "null"))


class DeclarationError(Exception):
    """The file can't be used; ``problems`` are ``line:column: what``."""

    def __init__(self, name: str, problems: list[str]) -> None:
        super().__init__("\n".join(f"{name}:{problem}" for problem in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Bodies to PUT, by name, in the order of the file."""

    templates: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    pools: Mapping[str, dict[str, Any]] = field(default_factory=dict)


class _Reader:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def wrong(self, node: Node, what: str) -> None:
        mark = node.start_mark
        self.problems.append(f"{mark.line + 1}:{mark.column + 1}: {what}")


Check = Callable[[_Reader, Node, str], Any]


def read_declaration(text: str, name: str = "file") -> Declaration:
    """The declaration in a YAML text. Raises DeclarationError with every problem found."""
    if len(text) > MAX_BYTES:
        raise DeclarationError(name, [f"1:1: the file is larger than {MAX_BYTES} bytes"])
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"
        raise DeclarationError(name, [f"{place}: {getattr(error, 'problem', None) or error}"]) from error
    reader = _Reader()
    found = _mapping({"templates": _named(_TEMPLATE), "pools": _named(_POOL)})(reader, root, "the file") if root else {}
    if not reader.problems and root is None:
        reader.problems.append("1:1: the file is empty")
    if reader.problems:
        raise DeclarationError(name, reader.problems)
    return Declaration(templates=found.get("templates") or {}, pools=found.get("pools") or {})


def _mapping(known: Mapping[str, Check], required: tuple[str, ...] = ()) -> Check:
    def check(reader: _Reader, node: Node, what: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in _items(reader, node, what):
            if key.value not in known:
                reader.wrong(key, f"{what} has no {key.value!r}{_nearest(key.value, known)}")
                continue
            found[key.value] = known[key.value](reader, value, key.value)
        for name in required:
            if isinstance(node, MappingNode) and name not in found:
                reader.wrong(node, f"{what} needs {name!r}")
        return found

    return check


def _named(check_one: Check) -> Check:
    def check(reader: _Reader, node: Node, what: str) -> dict[str, Any]:
        return {key.value: check_one(reader, value, key.value) for key, value in _items(reader, node, what)}

    return check


def _items(reader: _Reader, node: Node, what: str) -> list[tuple[ScalarNode, Node]]:
    """Key and value nodes of a mapping; keys twice, and keys that are no text, are problems."""
    if not isinstance(node, MappingNode):
        reader.wrong(node, f"{what} is to be a mapping (name: value)")
        return []
    seen: set[str] = set()
    found = []
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            reader.wrong(key, f"a name in {what} is to be text")
        elif key.value in seen:
            reader.wrong(key, f"{key.value!r} is there twice")
        else:
            seen.add(key.value)
            found.append((key, value))
    return found


def _nearest(name: str, known: Mapping[str, Check]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    starting = [other for other in known if other.startswith(name) or name.startswith(other)]
    best = (close or starting)[:1]
    return f"; did you mean {best[0]!r}?" if best else f"; it may have {', '.join(known)}"


def _list(check_one: Check) -> Check:
    def check(reader: _Reader, node: Node, what: str) -> list[Any]:
        if not isinstance(node, SequenceNode):
            reader.wrong(node, f"{what} is to be a list")
            return []
        return [check_one(reader, item, what) for item in node.value]

    return check


def _scalar(convert: Callable[[ScalarNode], Any], wanted: str) -> Check:
    def check(reader: _Reader, node: Node, what: str) -> Any:
        if isinstance(node, ScalarNode):
            if node.tag == _NULL:
                return None
            try:
                return convert(node)
            except ValueError as error:
                reader.wrong(node, f"{what} is to be {wanted}" + (f": {error}" if str(error) else ""))
                return None
        reader.wrong(node, f"{what} is to be {wanted}")
        return None

    return check


def _as_text(node: ScalarNode) -> str:
    return str(node.value)


def _as_number(node: ScalarNode) -> float:
    if node.tag not in (_INT, _FLOAT):
        raise ValueError
    return float(node.value.replace("_", ""))


def _as_count(node: ScalarNode) -> int:
    if node.tag != _INT:
        raise ValueError
    return int(node.value.replace("_", ""), 0)


def _as_flag(node: ScalarNode) -> bool:
    if node.tag != _BOOL:
        raise ValueError
    return node.value.lower() in ("true", "yes", "on")


def _as_size(node: ScalarNode) -> int:
    return parse_size(str(node.value))


_TEXT = _scalar(_as_text, "text")
_SECONDS = _scalar(_as_number, "a number of seconds")
_COUNT = _scalar(_as_count, "a whole number")
_FLAG = _scalar(_as_flag, "true or false")
_SIZE = _scalar(_as_size, "a size")
_RESOURCES = _mapping(
    {"memory_bytes": _SIZE, "cpu_cores": _scalar(_as_number, "a number"), "pids": _COUNT, "disk_bytes": _SIZE}
)
_STEP_TABLE = _mapping({"run": _TEXT, "timeout_s": _SECONDS}, ("run",))


def _step(reader: _Reader, node: Node, what: str) -> Any:
    return _STEP_TABLE(reader, node, "a setup step") if isinstance(node, MappingNode) else _TEXT(reader, node, what)


_TEMPLATE = _mapping(
    {
        "base": _TEXT,
        "repository": _mapping({"url": _TEXT, "ref": _TEXT}, ("url",)),
        "setup": _list(_step),
        "env": _named(_TEXT),
        "resources": _RESOURCES,
        "docker": _FLAG,
        "build_allow": _list(_TEXT),
        "session_ttl_s": _SECONDS,
        "idle_timeout_s": _SECONDS,
        "max_age_s": _SECONDS,
        "strict": _FLAG,
        "trusted": _FLAG,
        "shared_with": _list(_TEXT),
    }
)
_POOL = _mapping(
    {"template": _TEXT, "ref": _TEXT, "resources": _RESOURCES, "min_ready": _COUNT, "max_total": _COUNT},
    ("template",),
)
