"""Reads what an agent file says of an MCP server: how to reach it, and when to restart it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from lastgood.core.egress import Policy
from lastgood.core.mcp_servers import (
    DOCKER,
    NO_OAUTH,
    gateway_config,
    server_name,
    server_words,
    wants_oauth,
)
from lastgood.engine.mcp.mcp_errors import ServerUnavailable
from lastgood.engine.tools.command_environment import Environment
from lastgood.engine.tools.rooted_files import Root, place_under
from lastgood.engine.tools.tool import ToolFailed
from lastgood.model.agents import ToolsetSpec

START_SECONDS = 30.0
CALL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """`restarts`: how often a server that ended or did not start is started again before a call succeeds;
    None: no limit. `jitter`: the share of a pause by which it is longer or shorter, at random."""

    is_required: bool = False
    start_seconds: float = START_SECONDS
    call_seconds: float = CALL_SECONDS
    restarts: int | None = None
    first_pause: float = 1.0
    longest_pause: float = 60.0
    growth: float = 2.0
    jitter: float = 0.0
    restarts_after_success: bool = True  # whether a server that exited with code 0 is started again

    def pause(self, failures: int, chance: float = 0.5) -> float:
        """How long to wait after so many failures in a row. `chance` is between 0 and 1, at random."""
        pause = min(self.first_pause * self.growth ** min(failures - 1, 20), self.longest_pause)
        return pause * (1 + (2 * chance - 1) * self.jitter)

    def why_spent(self, failures: int) -> str:
        """Why it is not started again after so many failures in a row. Empty: it is."""
        if self.restarts is None or failures <= self.restarts:
            return ""
        if self.restarts == 0:
            return "its `lifecycle` does not allow a restart"
        return f"its `lifecycle` allows {self.restarts} restarts in a row"


@dataclass(frozen=True, slots=True)
class ServerSpec:
    name: str  # for people
    prefix: str  # of its tools' names
    identity: str  # the same for the same server, independent of its user
    lifecycle: Lifecycle
    spec: ToolsetSpec

    @property
    def is_remote(self) -> bool:
        return bool(self.spec.options.get("remote"))

    @property
    def url(self) -> str:
        return str(self.spec.options["remote"]["url"])

    @property
    def transport(self) -> str:
        return str(self.spec.options["remote"].get("transport_type") or "streamable")

    @property
    def policy(self) -> Policy:
        """A file of our own may name this machine and, if it says so, a private network. No other may."""
        private = self.spec.options.get("allow_private_ips") is True
        return Policy(loopback=self.spec.trusted, private=self.spec.trusted and private)

    def headers(self, environment: Environment) -> dict[str, str]:
        if wants_oauth(self.spec.options):
            raise ServerUnavailable(NO_OAUTH)
        return _filled(self.spec.options["remote"].get("headers") or {}, self.spec, environment)

    def words(self) -> list[str]:
        if not self.spec.trusted:
            raise ServerUnavailable(
                "its agent file comes from a URL or a registry and may start no command; save the file and "
                "serve it from disk"
            )
        ref = str(self.spec.options.get("ref") or "")
        if ref.startswith(DOCKER) and shutil.which("docker") is None:
            raise ServerUnavailable(
                f"`{ref}` needs the Docker MCP gateway, and `docker` is not installed; install it, or "
                "use `command` or `remote`"
            )
        words, package = server_words(self.spec.options), str(self.spec.options.get("version") or "")
        # docker-agent installs it then, unless the file says `false`. Here that is for the operator to do.
        if package not in ("", "false") and shutil.which(words[0]) is None:
            raise ServerUnavailable(f"`{words[0]}` is not installed; install {package}")
        return words

    def config(self) -> bytes | None:
        """The file that the program that starts it reads; JSON is YAML, too."""
        config = gateway_config(self.spec.options)
        return None if config is None else orjson.dumps(config)

    def environment(self, environment: Environment) -> dict[str, str]:
        return environment.harmless() | _filled(self.spec.options.get("env") or {}, self.spec, environment)

    def folder(self, working_dir: Path | None) -> Path:
        if working_dir is None:
            raise ServerUnavailable("this session has no working directory; create a session with one")
        try:
            with place_under(Root(working_dir), str(self.spec.options.get("working_dir") or ".")) as place:
                if not place.path.is_dir():
                    raise ServerUnavailable(f"its working_dir {place.path} is not a folder")
                return place.path
        except (ToolFailed, OSError) as error:
            raise ServerUnavailable(str(error)) from None


def server_spec(spec: ToolsetSpec) -> ServerSpec:
    options = spec.options
    given = str(options.get("name") or "")
    name = server_name(options)
    digest = hashlib.sha256(orjson.dumps(dict(options), option=orjson.OPT_SORT_KEYS)).hexdigest()
    return ServerSpec(name, given, digest, _lifecycle(options.get("lifecycle") or {}), spec)


def _lifecycle(said: Mapping[str, Any]) -> Lifecycle:
    profile, pauses = said.get("profile"), said.get("backoff") or {}
    restarts: int | None = said.get("max_restarts", -1)
    never = "never" if profile in ("strict", "best-effort") else ""
    if said.get("restart", never) == "never":
        restarts = 0
    default = Lifecycle()
    return Lifecycle(
        is_required=bool(said.get("required", profile == "strict")),
        start_seconds=said.get("startup_timeout") or default.start_seconds,
        call_seconds=said.get("call_timeout") or default.call_seconds,
        restarts=None if restarts is None or restarts < 0 else restarts,
        first_pause=pauses.get("initial") or default.first_pause,
        longest_pause=pauses.get("max") or default.longest_pause,
        growth=pauses.get("multiplier") or default.growth,
        jitter=pauses.get("jitter") or default.jitter,
        restarts_after_success=said.get("restart") != "on_failure",
    )


def _filled(values: Mapping[str, Any], spec: ToolsetSpec, environment: Environment) -> dict[str, str]:
    try:
        return environment.filled(values, spec.trusted)[0]
    except ToolFailed as error:
        raise ServerUnavailable(str(error)) from None
