"""`lastgood db backup` and `lastgood db restore`."""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from lastgood.cli.output import ProgressLine, count, print_json, print_line, remark
from lastgood.cli.parser import Commands, add_command
from lastgood.cli.startup import settings_of
from lastgood.errors import DatabaseDamaged, InvalidRequest, NoDatabase, StoreLocked, WrongUsage
from lastgood.flows.database_check import CheckReport, check_database
from lastgood.model.stored_rows import StoredTable
from lastgood.store.database_url import make_folder, open_store, sqlite_path
from lastgood.store.sqlite import open_sqlite
from lastgood.store.sqlite.copies import (
    copy_database,
    exclusive,
    is_there,
    partial_file,
    publish,
    replace,
)

_REVIEW = "tokens that were revoked after the backup are valid again; look at `lastgood tokens list`"


def add_copies(commands: Commands) -> None:
    backup = add_command(
        commands,
        "backup",
        run_backup,
        "copy the database into a file, also while a server uses it",
        json="print one JSON object",
        details="The copy is a consistent snapshot and is verified like `db check`. The file "
        "appears only when it is complete and on disk; an existing file is never replaced.",
    )
    backup.add_argument("file", metavar="FILE", help="the file to create")
    restore = add_command(
        commands,
        "restore",
        run_restore,
        "replace the database with a backup",
        json="print one JSON object",
        details="Stop the server first. Event ids, fences and other numbers are raised above everything that "
        "clients may have seen since the backup, and claims of workers end. The backup is not changed.",
    )
    restore.add_argument("file", metavar="FILE", nargs="?", help="a file that `db backup` has created")
    restore.add_argument(
        "--force", action="store_true", help="replace an existing database; it is kept beside the new one"
    )
    restore.add_argument(
        "--in-place",
        action="store_true",
        help="raise the event ids and fences of a database that was restored by other means (pg_restore, a "
        "disk snapshot); run it once, before a server starts",
    )


# -- backup --------------------------------------------------------------------------


def run_backup(args: argparse.Namespace) -> int:
    database = settings_of(args).database
    source, target = sqlite_path(database), Path(args.file)
    if source is None:
        dump = f"pg_dump --format=custom --file={args.file} '{_without_password(database)}'"
        raise WrongUsage(f"PostgreSQL has tools of its own for backups; run: {dump}")
    if target.exists():
        raise InvalidRequest(f"{target} exists; choose another name")
    started = time.monotonic()
    asyncio.run(_check_schema(source))
    with partial_file(target) as partial:
        _copy(source, partial)
        report = asyncio.run(_verify(partial, f"The database {source}"))
        publish(partial, target)
    done = _counts(report) | {"file": str(target), "bytes": target.stat().st_size}
    if args.json:
        print_json(done | {"seconds": round(time.monotonic() - started, 3)})
    else:
        print_line(f"{target}: {_content(report)}, {target.stat().st_size:,} bytes, verified")
    return 0


async def _check_schema(path: Path) -> None:
    """Before the copy, which an error would name instead."""
    await open_sqlite(path, read_only=True).close()


def _copy(source: Path, target: Path) -> None:
    with closing(ProgressLine()) as line:
        copy_database(source, target, lambda done, of: line.show(f"copying: {100 * done // max(of, 1)} %"))


async def _verify(path: Path, name: str) -> CheckReport:
    store = open_sqlite(path, read_only=True)
    try:
        with closing(ProgressLine()) as line:
            report = await check_database(
                store, lambda table, rows: line.show(f"verifying {table.value}: {rows:,} rows")
            )
    finally:
        await store.close()
    if not report.is_good:
        first = report.findings[0]
        raise DatabaseDamaged(
            f"{name} is damaged ({first.what}: {first.problem}); no copy was kept. Run `lastgood db check`"
        )
    return report


# -- restore -------------------------------------------------------------------------


def run_restore(args: argparse.Namespace) -> int:
    database = settings_of(args).database
    path = sqlite_path(database)
    if args.in_place == (args.file is not None):
        raise WrongUsage("give a FILE, or --in-place for a database that was restored by other means")
    if args.in_place:
        asyncio.run(_mark_in_place(database))
        _finish(
            args, {"database": _without_password(database)}, "raised the event ids and fences of the database"
        )
        return 0
    if path is None:
        command = f"pg_restore --clean --if-exists --dbname='{_without_password(database)}' {args.file}"
        raise WrongUsage(
            f"PostgreSQL has tools of its own for restores; stop all servers and run: {command}; "
            "then: lastgood db restore --in-place"
        )
    _restore(args, Path(args.file), path)
    return 0


def _restore(args: argparse.Namespace, backup: Path, path: Path) -> None:
    if not backup.exists():
        raise NoDatabase(f"No file {backup}; give one that `lastgood db backup` has created")
    make_folder(path.parent)
    kept = path.with_name(f"{path.name}.replaced-{time.strftime('%Y%m%d-%H%M%S')}")
    with exclusive(path):
        if is_there(path) and not args.force:
            raise InvalidRequest(f"{path} exists; use --force to replace it, which keeps it as {kept.name}")
        with partial_file(path) as partial:
            _copy(backup, partial)
            asyncio.run(_mark(partial, backup))
            report = asyncio.run(_verify(partial, f"The backup {backup}"))
            was_there = replace(partial, path, kept)
    done = _counts(report) | {"database": str(path), "replaced": str(kept) if was_there else None}
    text = f"{path}: restored {_content(report)}"
    _finish(args, done, f"{text}; the old database is {kept}" if was_there else text)


async def _mark(path: Path, backup: Path) -> None:
    """Applies missing migrations, too: the backup may be of an older version."""
    store = open_sqlite(path)
    try:
        await store.mark_restored(time.time(), backup.name)
    finally:
        await store.close()


async def _mark_in_place(database: str) -> None:
    store = await open_store(database)
    try:
        if others := await store.other_connections():
            raise StoreLocked(
                f"This database is in use ({count(others, 'other connection')}); "
                "stop all servers and other programs that use it"
            )
        await store.mark_restored(time.time(), "in place")
    finally:
        await store.close()


def _finish(args: argparse.Namespace, done: dict[str, object], text: str) -> None:
    if args.json:
        print_json(done)
    else:
        print_line(text)
    remark(_REVIEW)


# -- words ---------------------------------------------------------------------------


def _counts(report: CheckReport) -> dict[str, object]:
    return {table.value: report.rows[table] for table in (StoredTable.SESSIONS, StoredTable.TURNS)}


def _content(report: CheckReport) -> str:
    sessions, turns = report.rows[StoredTable.SESSIONS], report.rows[StoredTable.TURNS]
    return f"{count(sessions, 'session')} and {count(turns, 'turn')}"


def _without_password(database: str) -> str:
    """For a printed command line: PostgreSQL's tools read the password from PGPASSWORD or ~/.pgpass."""
    parts = urlsplit(database)
    user, at, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user.partition(':')[0]}{at}{host}", query="").geturl()
