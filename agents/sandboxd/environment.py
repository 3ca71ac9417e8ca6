"""The environment of a command, built in layers of which a later one wins.

daemon whitelist → non-interactive set → platform → template → session → call. Names of the
platform layer (proxy, trust, Docker) are the operator's: a session or call that sets one is refused,
a template's is ignored with a line in the log.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping

from agents.sandboxd.config import Config, User
from agents.sandboxd.problems import ProblemError

WHITELIST = ("PATH", "HOME", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "USER", "SHELL", "TMPDIR")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROOT = User(name="root", uid=0, gid=0, home="/root")

NON_INTERACTIVE = {
    "DEBIAN_FRONTEND": "noninteractive",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_MERGE_AUTOEDIT": "no",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "npm_config_yes": "true",
}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_LAYER_BYTES = 128 * 1024
log = logging.getLogger("sandboxd.environment")


class CommandEnvironment:
    """Knows the layers fixed at start; ``build`` adds those of a session and a call."""

    def __init__(self, config: Config, shell: str) -> None:
        self._shell = shell
        self._user = config.user
        self._base = {name: os.environ[name] for name in WHITELIST if name in os.environ}
        self._platform = platform_layer(config)
        self._template = dict(config.env.template)
        for name in sorted(self._platform.keys() & self._template.keys()):
            log.warning("the template's %s is ignored: the platform sets it", name)
            del self._template[name]

    def check(self, layer: Mapping[str, str], what: str) -> None:
        """400 for a malformed name or value, or a name that belongs to the platform."""
        for name, value in layer.items():
            if not _NAME.fullmatch(name) or "\0" in value:
                raise ProblemError(400, "bad_env", f"{what}: {name[:80]!r} is no variable that can be set.")
        if sum(len(name) + len(value) for name, value in layer.items()) > _MAX_LAYER_BYTES:
            raise ProblemError(400, "bad_env", f"{what}: more than {_MAX_LAYER_BYTES} bytes of variables.")
        reserved = sorted(self._platform.keys() & layer.keys())
        if reserved:
            raise ProblemError(
                400,
                "env_reserved",
                f"{what} sets {', '.join(reserved)}, which the platform sets for every command.",
                "Leave them out, or have the operator change them.",
            )

    def build(self, session: Mapping[str, str], call: Mapping[str, str], *, root: bool) -> dict[str, str]:
        """All layers merged. ``session`` and ``call`` were checked before."""
        user = ROOT if root else self._user
        env = {"PATH": DEFAULT_PATH, "TERM": "dumb", "LANG": "C.UTF-8", **self._base}
        env |= {"HOME": user.home, "USER": user.name, "SHELL": self._shell}
        return env | NON_INTERACTIVE | self._platform | self._template | dict(session) | dict(call)


def platform_layer(config: Config) -> dict[str, str]:
    """What follows from the sandbox's doors, and on top of it what the operator configured."""
    layer: dict[str, str] = {}
    if config.egress_socket is not None:
        proxy = f"http://127.0.0.1:{config.proxy_port}"
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            layer[name] = proxy
        layer["NO_PROXY"] = layer["no_proxy"] = "localhost,127.0.0.1,::1"
    if config.ca_bundle is not None:
        for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"):
            layer[name] = config.ca_bundle
        layer["NODE_EXTRA_CA_CERTS"] = layer["PIP_CERT"] = config.ca_bundle
    if config.docker:
        layer["DOCKER_HOST"] = "unix:///var/run/docker.sock"
    return layer | config.env.platform
