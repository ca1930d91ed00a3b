"""Settings, read once: flags win over `LASTGOOD_…` variables, these over `lastgood.toml`, that over defaults.

A path in `lastgood.toml` starts at the folder of that file. Its table `[agents]` gives names to
agents: `name = "reference"`, or `name = {source = "reference", trusted = true}`. A key that means
nothing is an error, for a misspelled setting that is ignored would be worse.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

SAFETIES = ("strict", "balanced", "restricted", "autonomous")

PRESETS = ("open-webui", "librechat")

SURFACES = ("api", "chat")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class SettingsInvalid(ValueError):
    """A setting cannot be used as it is; the text says which one, and what to write instead."""


@dataclass(frozen=True, slots=True)
class AliasSetting:
    """What a name in `[agents]` stands for. `trusted`: what comes from this URL may do what a file may."""

    source: str
    trusted: bool
    folder: Path


@dataclass(frozen=True, slots=True)
class Config:
    """A `lastgood.toml`, and the agents it names."""

    path: Path
    agents: Mapping[str, AliasSetting] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settings:
    #: Where Lastgood keeps its files (LASTGOOD_DATA_DIR).
    data_dir: Path
    #: `sqlite:///PATH` from the root, or `postgresql://…` (LASTGOOD_DATABASE); default: in the data dir.
    database: str
    #: The scripted model appends every prompt it sees to this file (LASTGOOD_PROMPT_LOG).
    prompt_log: Path | None = None
    #: The settings file (LASTGOOD_CONFIG); default: `lastgood.toml` here, else the one in the data dir.
    config: Config | None = None
    #: A file of NAME=value lines that holds keys; the environment wins over it (LASTGOOD_ENV_FILE).
    env_file: Path | None = None
    #: How old the copy of a URL may be, `60s` or `5m`; `0`: asked at every turn (LASTGOOD_PULL_INTERVAL).
    pull_interval: float = 60.0
    #: Sessions may only name working folders below this one (LASTGOOD_WORKING_DIR_ROOT).
    working_dir_root: Path | None = None
    #: For tool calls no rule speaks of: strict, balanced, restricted or autonomous (LASTGOOD_SAFETY).
    safety: str = "restricted"
    #: Where the server listens, HOST:PORT, unix://PATH or fd://N (LASTGOOD_LISTEN).
    listen: str = "127.0.0.1:8080"
    #: Where /metrics is, if not beside everything else; written like `listen` (LASTGOOD_METRICS_LISTEN).
    metrics_listen: str | None = None
    #: The surfaces that are served: api, chat (LASTGOOD_ONLY); default: all.
    only: tuple[str, ...] = SURFACES
    #: `check`: refuses a database that this version would have to change first; or auto (LASTGOOD_MIGRATE).
    migrate: str = "auto"
    #: A file whose first line is a token that may do everything (LASTGOOD_TOKEN_FILE).
    token_file: Path | None = None
    #: The name of a variable that holds such a token (LASTGOOD_TOKEN_ENV).
    token_env: str | None = None
    #: `yes`: anybody may do everything, also from other machines (LASTGOOD_INSECURE_NO_AUTH).
    insecure_no_auth: bool = False
    #: Names, with commas between them, under which the server may be asked for (LASTGOOD_ALLOWED_HOST).
    allowed_host: tuple[str, ...] = ()
    #: Origins, with commas between them, whose pages may ask (LASTGOOD_CORS_ORIGIN).
    cors_origin: tuple[str, ...] = ()
    #: Addresses of proxies whose X-Forwarded headers are believed (LASTGOOD_TRUSTED_PROXY).
    trusted_proxy: tuple[str, ...] = ()
    #: Under which address others reach the server, https://… (LASTGOOD_PUBLIC_URL).
    public_url: str | None = None
    #: The most bytes of a request to /v1, `32M` (LASTGOOD_MAX_REQUEST_SIZE).
    max_request_size: int = 32 * 1024 * 1024
    #: How long a model or a tool may give no sign of life (LASTGOOD_TURN_IDLE_TIMEOUT).
    turn_idle_timeout: float = 300.0
    #: How long one attempt may take (LASTGOOD_TURN_TIMEOUT).
    turn_timeout: float = 3600.0
    #: How long a turn of /v1 is kept for a client that has gone (LASTGOOD_DISCONNECT_GRACE).
    disconnect_grace: float = 30.0
    #: How long running turns may finish when the server is told to end (LASTGOOD_SHUTDOWN_GRACE).
    shutdown_grace: float = 10.0
    #: Chat clients whose requests are read their way: open-webui, librechat (LASTGOOD_PRESET).
    preset: tuple[str, ...] = ()
    #: How many histories are kept decoded in memory; none is lost by it (LASTGOOD_CONVERSATIONS_MAX).
    conversations_max: int = 1000
    #: How long sessions are kept that nobody uses or has starred, `90d`; `0`: for ever (LASTGOOD_RETAIN).
    retain: float = 0.0
    #: How many turns may begin in a minute under one token; `0`: any (LASTGOOD_TOKEN_RATE).
    token_rate: int = 0
    #: How many turns may run at once under one token; `0`: any (LASTGOOD_TOKEN_RUNNING).
    token_running: int = 0
    #: How many turns may begin in a minute for one user behind a token; `0`: any (LASTGOOD_USER_RATE).
    user_rate: int = 0
    #: How many turns may run at once for one user behind a token; `0`: any (LASTGOOD_USER_RUNNING).
    user_running: int = 0
    #: How many sessions a tenant may have; `0`: any (LASTGOOD_TENANT_SESSIONS).
    tenant_sessions: int = 0
    #: How many bytes of turns a tenant may store, `10G`; `0`: any (LASTGOOD_TENANT_BYTES).
    tenant_bytes: int = 0
    #: How many sessions made with one token may exist; `0`: any (LASTGOOD_TOKEN_SESSIONS).
    token_sessions: int = 0
    #: How many bytes of turns the sessions of one token may store, `1G`; `0`: any (LASTGOOD_TOKEN_BYTES).
    token_bytes: int = 0
    #: `yes`: spans of requests, turns, model calls and tool calls, by OTLP over HTTP (LASTGOOD_TRACING).
    tracing: bool = False

    @property
    def aliases(self) -> Mapping[str, AliasSetting]:
        return self.config.agents if self.config else {}


def read_settings(
    environment: Mapping[str, str] | None = None, *, folder: Path | None = None, **flags: str | None
) -> Settings:
    """`flags` are named like the settings; None: not given. `folder`: where relative paths start."""
    env = os.environ if environment is None else environment
    given = _Given(flags, env, folder or Path.cwd())
    data_dir = given.path("data_dir") or Path(_default_folder(env)).expanduser().absolute()
    config = _find_config(given, data_dir)
    if config is not None:
        given = replace(given, file=config, table=_read_config(config))
        data_dir = given.path("data_dir") or data_dir
    return Settings(
        data_dir=data_dir,
        database=given.text("database", f"sqlite:///{data_dir / 'lastgood.db'}"),
        prompt_log=given.path("prompt_log"),
        config=Config(config, _aliases(given.table, config)) if config else None,
        env_file=given.path("env_file"),
        pull_interval=given.seconds("pull_interval", "60s"),
        working_dir_root=given.path("working_dir_root"),
        safety=given.choice("safety", SAFETIES, "restricted"),
        listen=given.address("listen", "127.0.0.1:8080"),
        metrics_listen=given.address("metrics_listen", "") or None,
        only=given.items("only", SURFACES) or SURFACES,
        migrate=given.choice("migrate", ("auto", "check"), "auto"),
        token_file=given.path("token_file"),
        token_env=given.text("token_env", "") or None,
        insecure_no_auth=given.choice("insecure_no_auth", ("yes", "no"), "no") == "yes",
        allowed_host=given.items("allowed_host"),
        cors_origin=given.items("cors_origin"),
        trusted_proxy=given.items("trusted_proxy"),
        public_url=given.text("public_url", "") or None,
        max_request_size=given.bytes("max_request_size", "32M"),
        turn_idle_timeout=given.seconds("turn_idle_timeout", "5m"),
        turn_timeout=given.seconds("turn_timeout", "1h"),
        disconnect_grace=given.seconds("disconnect_grace", "30s"),
        shutdown_grace=given.seconds("shutdown_grace", "10s"),
        preset=given.items("preset", PRESETS),
        conversations_max=given.number("conversations_max", "1000"),
        retain=given.seconds("retain", "0"),
        token_rate=given.number("token_rate", "0"),
        token_running=given.number("token_running", "0"),
        tenant_sessions=given.number("tenant_sessions", "0"),
        tenant_bytes=given.bytes("tenant_bytes", "0"),
        token_sessions=given.number("token_sessions", "0"),
        token_bytes=given.bytes("token_bytes", "0"),
        user_rate=given.number("user_rate", "0"),
        user_running=given.number("user_running", "0"),
        tracing=given.choice("tracing", ("yes", "no"), "no") == "yes",
    )


def _default_folder(env: Mapping[str, str]) -> str:
    base = env.get("XDG_DATA_HOME") or "~/.local/share"
    return f"{base}/lastgood"


@dataclass(frozen=True, slots=True)
class _Given:
    """Who says what. Every error names whom to correct, and no value: one may be in the wrong place."""

    flags: Mapping[str, str | None]
    env: Mapping[str, str]
    folder: Path
    file: Path | None = None
    table: Mapping[str, Any] = field(default_factory=dict)

    def find(self, name: str) -> tuple[str, str, Path] | None:
        """The value, who gave it, and where its paths start."""
        if flag := self.flags.get(name):
            return flag, f"--{name.replace('_', '-')}", self.folder
        if variable := self.env.get(f"LASTGOOD_{name.upper()}"):
            return variable, f"LASTGOOD_{name.upper()}", self.folder
        if self.file is None or name not in self.table:
            return None
        who = f"{self.file}: {name}"
        return _written(self.table[name], who), who, self.file.parent

    def text(self, name: str, default: str) -> str:
        found = self.find(name)
        return found[0] if found else default

    def path(self, name: str) -> Path | None:
        found = self.find(name)
        return (found[2] / Path(found[0]).expanduser()).absolute() if found else None

    def address(self, name: str, default: str) -> str:
        """The path of a unix socket starts where every path does."""
        value, _, folder = self.find(name) or (default, "", self.folder)
        path = value.removeprefix("unix://")
        return value if path in ("", value) else f"unix://{(folder / Path(path).expanduser()).absolute()}"

    def items(self, name: str, choices: Sequence[str] = ()) -> tuple[str, ...]:
        value, who, _ = self.find(name) or ("", "", self.folder)
        items = tuple(item.strip() for item in value.split(",") if item.strip())
        if choices and not set(items) <= set(choices):
            raise SettingsInvalid(f"{who} must be a list of {', '.join(choices)}")
        return items

    def number(self, name: str, default: str) -> int:
        value, who, _ = self.find(name) or (default, "", self.folder)
        if not re.fullmatch(r"\d{1,9}", value):
            raise SettingsInvalid(f"{who} must be a whole number")
        return int(value)

    def bytes(self, name: str, default: str) -> int:
        value, who, _ = self.find(name) or (default, "", self.folder)
        found = re.fullmatch(r"(\d{1,9})([KMG]?)", value)
        if found is None:
            raise SettingsInvalid(f"{who} must be a size in bytes (500K, 32M, 1G)")
        return int(found[1]) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[found[2]]

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value, who, _ = self.find(name) or (default, "", self.folder)
        if value not in choices:
            raise SettingsInvalid(f"{who} must be one of {', '.join(choices)}")
        return value

    def seconds(self, name: str, default: str) -> float:
        value, who, _ = self.find(name) or (default, "", self.folder)
        found = _DURATION.fullmatch(value)
        if value != "0" and found is None:
            raise SettingsInvalid(f"{who} must be a duration with a unit (60s, 5m, 1h) or 0")
        return float(found[1]) * _SECONDS[found[2]] if found else 0.0


# -- lastgood.toml -----------------------------------------------------------------

_KEYS = (*(one.name for one in fields(Settings) if one.name != "config"), "agents")


def _find_config(given: _Given, data_dir: Path) -> Path | None:
    """One that is named must be there; one that is only looked for may be missing."""
    named = given.path("config")
    looked_for = [place / "lastgood.toml" for place in (given.folder, data_dir)]
    return named or next((file for file in looked_for if file.is_file()), None)


def _read_config(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_bytes().decode()
        table = tomllib.loads(text)
    except OSError as error:
        raise SettingsInvalid(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsInvalid(f"{file} is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsInvalid(f"{file} is not TOML: {error}") from None
    _refuse_unknown(table, _KEYS, file, text)
    return table


def _aliases(table: Mapping[str, Any], file: Path) -> Mapping[str, AliasSetting]:
    agents = table.get("agents", {})
    if not isinstance(agents, dict):
        raise SettingsInvalid(f'{file}: agents must be a table: [agents] with lines like name = "reference"')
    return {name: _alias(value, f"{file}: agents.{name}", file) for name, value in agents.items()}


def _alias(value: Any, who: str, file: Path) -> AliasSetting:
    if not isinstance(value, dict):
        return AliasSetting(_text(value, who), False, file.parent)
    _refuse_unknown(value, ("source", "trusted"), file)
    trusted = value.get("trusted", False)
    if not isinstance(trusted, bool):
        raise SettingsInvalid(f"{who}.trusted must be true or false")
    return AliasSetting(_text(value.get("source"), f"{who}.source"), trusted, file.parent)


def _written(value: Any, who: str) -> str:
    """TOML has numbers, lists and truth; flags and variables have their text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return ",".join(_text(item, who) for item in value)
    return _text(value, who)


def _text(value: Any, who: str) -> str:
    if isinstance(value, str) and value and "\0" not in value:
        return value
    raise SettingsInvalid(f"{who} must be a string in quotes")


def _refuse_unknown(table: Mapping[str, Any], known: Sequence[str], file: Path, text: str = "") -> None:
    for key in table:
        if key in known:
            continue
        found = re.search(rf"^[ \t]*\[*[ \t]*[\"']?{re.escape(key)}\b", text, re.MULTILINE)
        line = f", line {text.count(chr(10), 0, found.start()) + 1}" if found else ""
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known settings: {', '.join(known)}"
        raise SettingsInvalid(f"{file}{line}: unknown setting {key!r}; {hint}")
