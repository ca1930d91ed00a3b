"""`lastgood doctor`: checks what a server needs on this machine, and says what to do about problems.

Changes nothing and sends no request. Keys are named, never shown.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from lastgood import __version__
from lastgood.cli.listener import listen_on
from lastgood.cli.output import one_line, print_json, print_wrapped
from lastgood.cli.parser import CommandParser, add_settings, configure_command, nearest
from lastgood.cli.startup import settings_of
from lastgood.engine.providers.model_references import OFFLINE_SPEC, why_offline
from lastgood.engine.providers.provider_aliases import ALIASES
from lastgood.engine.providers.provider_table import unusable_key
from lastgood.errors import InvalidRequest, LastgoodError
from lastgood.outside.env_file import secrets_of
from lastgood.settings import ROWS, Settings
from lastgood.settings.worker_settings import WORKER_ROWS
from lastgood.store.database_url import open_store, sqlite_path
from lastgood.store.sqlite.lock_file import owner_of

_LEAST_FREE_BYTES = 1024**3
#: Clocks of file systems may be a little ahead.
_MOST_AHEAD_SECONDS = 120.0
_CLIS = ("claude", "codex", "goose")
#: Not settings of a server or a worker, but read.
_OTHER_VARIABLES = frozenset({"TOKEN", "DEBUG"})
_PREFIX = "LASTGOOD_"
_WIDTH = len("agent CLIs")
_MARKS = {"ok": "✓", "warning": "!", "error": "✗"}


@dataclass(frozen=True, slots=True)
class Check:
    """`level`: ok, warning (a server starts) or error (it does not)."""

    name: str
    level: str
    message: str


def configure(parser: CommandParser) -> None:
    add_settings(parser, "listen", "env_file")
    configure_command(
        parser,
        run_doctor,
        json="print a JSON array",
        details="Checks Python, the database and its schema, API keys by name, settings, port, disk, "
        "clock and the agent CLIs. Changes nothing. Exits with 1 if a server could not start.",
    )


def run_doctor(args: argparse.Namespace) -> int:
    settings = settings_of(args)
    checks = [
        _python(),
        asyncio.run(_database(settings)),
        *_keys(settings),
        *_variables(os.environ),
        _port(settings),
        _disk(settings),
        _clock(settings),
        _clis(),
    ]
    if args.json:
        print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            print_wrapped(
                f"{_MARKS[check.level]} {check.name:{_WIDTH}}  {one_line(check.message)}", _WIDTH + 4
            )
    return 1 if any(check.level == "error" for check in checks) else 0


def _python() -> Check:
    return Check(
        "python", "ok", f"Python {platform.python_version()} ({sys.executable}), Lastgood {__version__}"
    )


async def _database(settings: Settings) -> Check:
    path = sqlite_path(settings.database)
    if path is not None and not path.exists():
        folder = _existing(path.parent)
        if not os.access(folder, os.W_OK):
            return Check("database", "error", f"{folder} is not writable; choose another --data-dir")
        return Check("database", "ok", f"{path} does not exist yet; the first start creates it")
    try:
        # Also refuses a database of another program or version, and says so.
        await (await open_store(settings.database, read_only=True)).close()
    except LastgoodError as error:
        return Check("database", "error", error.message)
    if path is not None and not os.access(path, os.W_OK):
        return Check("database", "error", f"{path} is not writable; change its owner or its mode")
    return Check("database", "ok", f"{path or 'PostgreSQL'} can be opened, and its schema is current")


def _keys(settings: Settings) -> Iterator[Check]:
    secrets = secrets_of(settings.env_file, os.environ)
    names = dict.fromkeys(name for alias in ALIASES.values() for name in alias.keys)
    found = [name for name in names if secrets.has(name)]
    if (why := unusable_key(secrets)) is not None:
        yield Check("keys", "warning", why)
    if found:
        yield Check("keys", "ok", f"set: {', '.join(found)}")
    else:
        yield Check("keys", "warning", why_offline(OFFLINE_SPEC) or "")


def _variables(env: Mapping[str, str]) -> Iterator[Check]:
    """Misspelt settings, which nothing else notices: any program may have variables of that prefix."""
    known = {row.variable.removeprefix(_PREFIX) for row in (*ROWS.values(), *WORKER_ROWS.values())}
    ours = {name.removeprefix(_PREFIX) for name in env if name.startswith(_PREFIX)}
    for name in sorted(ours - known - _OTHER_VARIABLES):
        if near := nearest(name, known, _PREFIX):
            yield Check("settings", "warning", f"{_PREFIX}{name} is no setting{near}")


def _port(settings: Settings) -> Check:
    if settings.listen.startswith(("unix://", "fd://")):
        return Check("port", "ok", f"{settings.listen} is not a port")
    try:
        with listen_on(settings.listen, "--listen"):
            return Check("port", "ok", f"{settings.listen} is free")
    except InvalidRequest as error:
        path = sqlite_path(settings.database)
        owner, address = owner_of(path.with_name(path.name + ".lock")) if path is not None else ("", "")
        if address == f"http://{settings.listen}":
            return Check("port", "ok", f"your server ({owner}) listens on {settings.listen}")
        return Check("port", "warning", error.message)


def _disk(settings: Settings) -> Check:
    folder = _existing(settings.data_dir)
    free = shutil.disk_usage(folder).free
    text = f"{free / 1024**3:.1f} GiB free at {folder}"
    if free < _LEAST_FREE_BYTES:
        return Check("disk", "warning", f"{text}; free some space, or choose another --data-dir")
    return Check("disk", "ok", text)


def _clock(settings: Settings) -> Check:
    """Leases and expiry compare times. A clock behind its own files was set back."""
    path = sqlite_path(settings.database)
    ahead = path.stat().st_mtime - time.time() if path is not None and path.exists() else 0.0
    if ahead > _MOST_AHEAD_SECONDS:
        return Check(
            "clock", "warning", f"the database was written {ahead:.0f} s in the future; set the clock"
        )
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _clis() -> Check:
    found = [f"{name} ({place})" for name in _CLIS if (place := shutil.which(name)) is not None]
    return Check("agent CLIs", "ok", ", ".join(found) or f"none of {', '.join(_CLIS)} is on the PATH")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
