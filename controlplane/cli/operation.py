"""What commands that talk to the API share: their common options and the client they are given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

if TYPE_CHECKING:
    from warmpool import Warmpool

P = ParamSpec("P")
ROOT_OPTIONS = "warmpool.options"

Url = Annotated[
    str | None, typer.Option("--url", help="URL of the API [WARMPOOL_API_URL, else that of `warmpool up`].")
]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", help="API key [WARMPOOL_API_KEY, else that of `warmpool up`].")
]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, everything else on standard error.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Operators: the tenant this is about.")]


class Cli:
    """The common options of one call, and the API client made from them when first used."""

    def __init__(self, *, url: str | None, api_key: str | None, as_json: bool) -> None:
        self._url = url
        self._api_key = api_key
        self.json = as_json

    @cached_property
    def api(self) -> Warmpool:
        from warmpool import Warmpool

        # Who sits at a terminal wants to know at once that nothing runs there.
        return Warmpool(api_url=self._url, api_key=self._api_key, patient=False)

    def close(self) -> None:
        if "api" in self.__dict__:
            self.api.close()


def operation(function: Callable[Concatenate[Cli, P], None]) -> Callable[..., None]:
    """Make a command of ``function(cli, …)``: it gets the common options beside its own. They may also stand
    before the command's name (``warmpool --json pool ls``)."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    common = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        inspect.Parameter("url", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Url),
        inspect.Parameter("api_key", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ApiKey),
        inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json),
        inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug),
    ]

    @functools.wraps(function)
    def command(ctx: typer.Context, **arguments: Any) -> None:
        options = ctx.meta.setdefault(ROOT_OPTIONS, {})
        for name in ("url", "api_key", "as_json", "debug"):
            options[name] = arguments.pop(name) or options.get(name)
        cli = Cli(url=options["url"], api_key=options["api_key"], as_json=bool(options["as_json"]))
        try:
            function(cli, **arguments)  # type: ignore[call-arg]
        finally:
            cli.close()

    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    command.__signature__ = inspect.Signature([*named, *common])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*named, *common]}
    return command
