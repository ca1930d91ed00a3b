"""Settings. Each is one row, from which the reader, the command line and the documentation are made.

Flags take precedence over `LASTGOOD_…` variables, these over `lastgood.toml`, and that over defaults. A
relative path in `lastgood.toml` starts at the directory of the file. Its table `[agents]` names agents:
`name = "reference"`, or `name = {source = "reference", trusted = true}`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lastgood.settings.config_file import (
    AliasSetting,
    Config,
    as_text,
    read_aliases,
    read_config,
    read_worker_table,
)
from lastgood.settings.setting_rows import Row, rows_of
from lastgood.settings.setting_rows import setting as _row
from lastgood.settings.types import (
    ADDRESS,
    DIRECTORY,
    DURATION,
    FILE,
    NAME,
    NUMBER,
    SIZE,
    SWITCH,
    URL,
    SettingText,
    choice,
    list_of,
)
from lastgood.settings.worker_settings import WORKER_ROWS, WorkerSettings

SAFETIES = ("strict", "balanced", "restricted", "autonomous")

PRESETS = ("open-webui", "librechat")

SURFACES = ("api", "chat", "work", "console")


@dataclass(frozen=True, slots=True)
class Settings:
    data_dir: Path = _row(
        DIRECTORY,
        "store Lastgood's files in this directory",
        shown="$XDG_DATA_HOME/lastgood, or ~/.local/share/lastgood",
        required=True,
    )
    database: str = _row(
        URL,
        "use this database: sqlite:///PATH (sqlite:////PATH if absolute) or postgresql://…",
        shown="lastgood.db in the data directory",
        required=True,
    )
    config: Config | None = _row(
        FILE,
        "read settings from this file",
        shown="lastgood.toml in the current directory, else in the data directory",
    )
    prompt_log: Path | None = _row(
        FILE, "append every prompt of the scripted model to this file", has_flag=False
    )
    env_file: Path | None = _row(
        FILE, "read API keys from the NAME=value lines of this file; environment variables take precedence"
    )
    pull_interval: float = _row(
        DURATION, "cache agents from URLs for this long (60s, 5m); 0 checks the URL at every turn", "60s"
    )
    working_dir_root: Path | None = _row(
        DIRECTORY, "allow sessions to set a working directory, which must be below this one"
    )
    safety: str = _row(
        choice("MODE", SAFETIES),
        "handle tool calls that no permission rule covers: restricted (allow read-only tools), autonomous "
        "(allow all tools), strict or balanced (ask a person)",
        "restricted",
    )
    listen: str = _row(ADDRESS, "listen on this address: HOST:PORT, unix://PATH or fd://N", "127.0.0.1:8080")
    metrics_listen: str | None = _row(
        ADDRESS, "serve /metrics on a separate address: HOST:PORT, unix://PATH or fd://N"
    )
    only: tuple[str, ...] = _row(
        list_of("SURFACE", SURFACES),
        "serve only this surface: api, chat (/v1), work or console",
        "api,chat,work,console",
    )
    migrate: str = _row(
        choice("MODE", ("auto", "check")),
        "auto: migrate an older database at startup; check: refuse to start on one",
        "auto",
    )
    token_file: Path | None = _row(
        FILE, "accept the token in the first line of this file, with the scope admin"
    )
    token_env: str | None = _row(NAME, "accept the token in this environment variable, with the scope admin")
    insecure_no_auth: bool = _row(SWITCH, "disable authentication: any client has full access", "no")
    allowed_host: tuple[str, ...] = _row(list_of("HOST"), "accept requests with this Host header")
    cors_origin: tuple[str, ...] = _row(list_of("ORIGIN"), "accept cross-origin requests from this origin")
    trusted_proxy: tuple[str, ...] = _row(
        list_of("ADDRESS"), "trust the X-Forwarded headers of the proxy at this address"
    )
    proxy_user_header: str | None = _row(
        NAME, "log in the user that a trusted proxy names in this header, with the scopes session and approve"
    )
    public_url: str | None = _row(
        URL, "announce this public URL of the server, and accept its host and origin"
    )
    max_request_size: int = _row(SIZE, "reject larger request bodies on /v1 and larger imports", "32M")
    turn_idle_timeout: float = _row(
        DURATION, "fail a turn after this long without output from the model or a tool", "5m"
    )
    turn_timeout: float = _row(DURATION, "fail an attempt that takes longer than this", "1h")
    disconnect_grace: float = _row(
        DURATION, "cancel a turn on /v1 this long after its client disconnected", "30s"
    )
    shutdown_grace: float = _row(DURATION, "let running turns finish for this long at shutdown", "10s")
    preset: tuple[str, ...] = _row(
        list_of("CLIENT", PRESETS), "adapt to the requests of this chat client: open-webui or librechat"
    )
    conversations_max: int = _row(NUMBER, "cache at most this many decoded histories in memory", "1000")
    retain: float = _row(
        DURATION,
        "delete sessions that are not starred and were not used for this long (90d)",
        "0",
        shown="never",
    )
    token_rate: int = _row(
        NUMBER, "limit the turns that one token can start per minute", "0", shown="unlimited"
    )
    token_running: int = _row(NUMBER, "limit the concurrent turns of one token", "0", shown="unlimited")
    user_rate: int = _row(
        NUMBER, "limit the turns that one user of a token can start per minute", "0", shown="unlimited"
    )
    user_running: int = _row(
        NUMBER, "limit the concurrent turns of one user of a token", "0", shown="unlimited"
    )
    tenant_sessions: int = _row(NUMBER, "limit the sessions of a tenant", "0", shown="unlimited")
    tenant_bytes: int = _row(SIZE, "limit the stored size of a tenant's turns (10G)", "0", shown="unlimited")
    token_sessions: int = _row(NUMBER, "limit the sessions created with one token", "0", shown="unlimited")
    token_bytes: int = _row(
        SIZE, "limit the stored size of turns in sessions created with one token (1G)", "0", shown="unlimited"
    )
    tracing: bool = _row(
        SWITCH,
        "export OpenTelemetry spans over OTLP/HTTP, as the OTEL_EXPORTER_OTLP_… variables configure",
        "no",
    )

    @property
    def work_dirs(self) -> Path:
        """Where sessions get their working directories, if they name none."""
        return self.data_dir / "work"

    @property
    def aliases(self) -> Mapping[str, AliasSetting]:
        return self.config.agents if self.config else {}


ROWS: Mapping[str, Row] = rows_of(Settings)


_KEYS = tuple(name for name in ROWS if name != "config")


# -- reading them ------------------------------------------------------------------


def read_settings(
    environment: Mapping[str, str] | None = None, *, folder: Path | None = None, **flags: str | None
) -> Settings:
    """`flags` are named like the settings; None means not given. Relative paths start at `folder`."""
    env = os.environ if environment is None else environment
    given = _Sources(ROWS, flags, env, folder or Path.cwd())
    data_dir = given.value("data_dir") or Path(_default_folder(env)).expanduser().absolute()
    config = _find_config(given, data_dir)
    if config is not None:
        given = replace(given, file=config, table=read_config(config, _KEYS))
    values = {name: given.value(name) for name in ROWS if given.find(name) is not None}
    values.setdefault("data_dir", data_dir)
    values.setdefault("database", f"sqlite:///{values['data_dir'] / 'lastgood.db'}")
    values["config"] = Config(config, read_aliases(given.table, config)) if config else None
    values["only"] = values.get("only") or SURFACES
    return Settings(**values)


def read_worker_settings(
    environment: Mapping[str, str] | None = None,
    *,
    folder: Path | None = None,
    data_dir: str | None = None,
    config: str | None = None,
    **flags: str | None,
) -> WorkerSettings:
    """Settings of `lastgood worker`: flags, variables and the table `[worker]`."""
    env = os.environ if environment is None else environment
    base = read_settings(env, folder=folder, data_dir=data_dir, config=config)
    given = _Sources(WORKER_ROWS, flags, env, folder or Path.cwd())
    if base.config is not None:
        table = read_worker_table(read_config(base.config.path, _KEYS), tuple(WORKER_ROWS), base.config.path)
        given = replace(given, file=base.config.path, table=table)
    values = {name: given.value(name) for name in WORKER_ROWS if given.find(name) is not None}
    values.setdefault("root", base.data_dir / "worker")
    return WorkerSettings(**values)


def _default_folder(env: Mapping[str, str]) -> str:
    base = env.get("XDG_DATA_HOME") or "~/.local/share"
    return f"{base}/lastgood"


@dataclass(frozen=True, slots=True)
class _Sources:
    rows: Mapping[str, Row]
    flags: Mapping[str, str | None]
    env: Mapping[str, str]
    folder: Path
    file: Path | None = None
    table: Mapping[str, Any] = field(default_factory=dict)

    def find(self, name: str) -> SettingText | None:
        """Returns None if the setting is given nowhere. An empty flag or variable counts as not given."""
        row = self.rows[name]
        if flag := self.flags.get(name):
            return SettingText(flag, row.flag, self.folder)
        if variable := self.env.get(row.variable):
            return SettingText(variable, row.variable, self.folder)
        if self.file is None or name not in self.table:
            return None
        source = f"{self.file}: {row.key}"
        return SettingText(as_text(self.table[name], source), source, self.file.parent)

    def value(self, name: str) -> Any:
        found = self.find(name)
        return None if found is None else self.rows[name].type.read(found)


def _find_config(given: _Sources, data_dir: Path) -> Path | None:
    """A file that is named must exist; one at a default location may be missing."""
    named: Path | None = given.value("config")
    defaults = [place / "lastgood.toml" for place in (given.folder, data_dir)]
    return named or next((file for file in defaults if file.is_file()), None)
