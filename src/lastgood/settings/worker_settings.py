"""Settings of `lastgood worker`: what the owner of a machine allows on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lastgood.settings.setting_rows import Row, rows_of, setting
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
    SettingType,
    choice,
    list_of,
)

KINDS = ("acp", "claude", "codex", "command", "goose")
_SAFETIES = ("strict", "balanced", "restricted", "autonomous")
#: Where the next runtime begins: a command may contain commas.
_NEXT_RUNTIME = re.compile(rf",(?=[\w.-]+=(?:{'|'.join(KINDS)})(?:[:,]|$))")


def _runtimes(given: SettingText) -> tuple[str, ...]:
    return tuple(part.strip() for part in _NEXT_RUNTIME.split(given.text))


def _directories(given: SettingText) -> tuple[Path, ...]:
    parts = (part.strip() for part in given.text.split(","))
    return tuple((given.folder / Path(part).expanduser()).absolute() for part in parts if part)


_RUNTIMES = SettingType("NAME=KIND[:COMMAND]", _runtimes, is_list=True)
_DIRECTORIES = SettingType("DIR", _directories, is_list=True)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    root: Path = setting(
        DIRECTORY,
        "keep working directories, undelivered reports and the token in this directory",
        shown="worker in the data directory",
        required=True,
    )
    server: str | None = setting(URL, "claim tasks from this server: http://HOST:PORT or https://…")
    token_file: Path | None = setting(
        FILE,
        "read the worker token from the first line of this file",
        shown="the token that `lastgood worker enroll` has stored",
    )
    worker_id: str | None = setting(
        NAME, "register under this worker id, if the token is bound to one", shown="a random id per root"
    )
    name: str | None = setting(NAME, "show the worker under this name", shown="the host name")
    runtime: tuple[str, ...] = setting(
        _RUNTIMES,
        "offer a runtime: a name, a kind (claude, codex, goose, acp, command) and the command if it is not "
        "the kind's own",
    )
    account: tuple[str, ...] = setting(
        list_of("NAME=ACCOUNT"),
        "name the account that the CLI of this runtime is logged in with, if the worker cannot see it; "
        "another account is another runtime",
    )
    slots: int = setting(NUMBER, "run at most this many tasks at once", "1")
    allow_dir: tuple[Path, ...] = setting(
        _DIRECTORIES, "let tasks work in this folder and below it, on your own files"
    )
    max_safety: str = setting(
        choice("MODE", _SAFETIES),
        "never allow more than this safety mode, whatever the server says: strict (ask about every tool "
        "call), balanced (ask before changes), restricted (deny changes), autonomous (allow everything)",
        "balanced",
    )
    pass_env: tuple[str, ...] = setting(
        list_of("NAME"), "pass this environment variable on to the CLIs; its value is redacted in reports"
    )
    allow_mcp: tuple[str, ...] = setting(
        list_of("LINE"),
        "let CLIs use this MCP server of an agent: its whole command line with its variables, or its URL "
        "with its headers, with globs; write a comma as `?`. --max-safety autonomous allows all of them",
    )
    snapshot_allowed_dirs: bool = setting(
        SWITCH, "upload snapshots of changes in --allow-dir folders, too", "no"
    )
    ca_file: Path | None = setting(
        FILE, "trust the certificates in this file in addition to the system's, also in the CLIs"
    )
    min_free_disk: int = setting(SIZE, "claim nothing while less disk space is free (500M, 2G)", "1G")
    drain_grace: float = setting(DURATION, "let running tasks finish for this long after SIGTERM", "60s")
    idle_timeout: float = setting(
        DURATION, "fail a task after this long without progress of its CLI; 0: never", "30m"
    )
    keep_dirs: float = setting(
        DURATION,
        "delete working directories that were not used for this long; those without an uploaded snapshot are "
        "kept four times as long; 0: never",
        "14d",
    )
    metrics_listen: str | None = setting(ADDRESS, "serve Prometheus metrics on this address: HOST:PORT")


WORKER_ROWS: Mapping[str, Row] = rows_of(WorkerSettings, "worker")
