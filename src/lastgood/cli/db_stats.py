"""`lastgood db stats` and `lastgood db upgrade`."""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict

from lastgood.cli.output import count, print_json, print_line, when
from lastgood.cli.parser import Commands, add_command
from lastgood.cli.startup import settings_of
from lastgood.model.stored_rows import DatabaseStatistics
from lastgood.store.database_url import open_store, upgrade_database

_UNITS = ("bytes", "KB", "MB", "GB", "TB")


def add_stats(commands: Commands) -> None:
    add_command(
        commands,
        "stats",
        run_stats,
        "show how many rows and bytes the database has",
        json="print one JSON object",
        details="Changes nothing and can run while a server uses the database. Reads the whole file.",
    )
    add_command(
        commands,
        "upgrade",
        run_upgrade,
        "apply missing migrations to the database",
        json="print one JSON object",
        details="For servers that run with `--migrate check`. On SQLite, stop the server first.",
    )


def run_stats(args: argparse.Namespace) -> int:
    found = asyncio.run(_read(settings_of(args).database))
    if args.json:
        print_json(asdict(found))
    else:
        _print(found)
    return 0


async def _read(database: str) -> DatabaseStatistics:
    store = await open_store(database, read_only=True)
    try:
        async with store.inspect() as look:
            return await look.statistics()
    finally:
        await store.close()


def _print(found: DatabaseStatistics) -> None:
    for table in sorted(found.tables, key=lambda table: -table.bytes):
        if table.rows:
            print_line(f"{table.name:<15} {table.rows:>12,} {_size(table.bytes):>12}")
    sessions = next(table.rows for table in found.tables if table.name == "sessions")
    print_line(
        f"{count(sessions, 'session')} of {count(found.tenants, 'tenant')}, {_size(found.bytes)} in all"
    )
    by_status = ", ".join(f"{number:,} {status}" for status, number in sorted(found.attempts.items()))
    print_line(f"attempts: {by_status or 'none'}")
    if found.oldest_session_at is not None and found.last_change_at is not None:
        days = (time.time() - found.oldest_session_at) / 86_400
        print_line(
            f"oldest session: {when(found.oldest_session_at)} ({days:.0f} days ago); "
            f"last change: {when(found.last_change_at)}"
        )


def _size(number: float) -> str:
    for unit in _UNITS:
        if number < 1000 or unit == _UNITS[-1]:
            break
        number /= 1000
    return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"


def run_upgrade(args: argparse.Namespace) -> int:
    before, after = asyncio.run(upgrade_database(settings_of(args).database))
    if args.json:
        print_json({"before": before, "after": after})
    elif before == after:
        print_line(f"the database has schema {after}; nothing to do")
    else:
        print_line(
            f"the database was upgraded from schema {before} to {after}"
            if before
            else f"created schema {after}"
        )
    return 0
