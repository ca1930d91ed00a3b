"""`lastgood import multica`: brings the sessions of a multica database along."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import asdict
from typing import Any

from lastgood.cli.output import count, one_line, print_json, print_line, remark, show_progress
from lastgood.cli.parser import CommandParser, add_command, add_commands
from lastgood.cli.startup import TENANT, settings_of
from lastgood.core.input_checks import check_text
from lastgood.errors import InvalidRequest, NoDatabase, WrongUsage
from lastgood.flows.import_report import ImportOptions, ImportReport
from lastgood.flows.multica_import import MulticaImport
from lastgood.model.ids import TenantId
from lastgood.store.database_url import open_store
from lastgood.wiring import RandomIds


def configure(parser: CommandParser) -> None:
    multica = add_command(
        add_commands(parser),
        "multica",
        import_multica,
        "import the chats and issue sessions of a multica database",
        json="print the report as a JSON object",
        details="Reads the tables chat_session, chat_message, agent_task_queue and agent_runtime, and writes "
        "nothing there. Chats become sessions with their turns; issues become sessions that know their "
        "native sessions and folders. Run it again to add what is new. On SQLite, stop the server first.",
    )
    multica.add_argument(
        "url", metavar="URL", help="multica's database: postgresql://USER@HOST:PORT/DATABASE"
    )
    multica.add_argument(
        "--dry-run", action="store_true", help="report what would be imported, and write nothing"
    )
    multica.add_argument(
        "--workspace", metavar="ID", help="import this workspace; required if the database has several"
    )
    multica.add_argument(
        "--tenant", metavar="T", default=TENANT, help="import into this tenant; default: default"
    )
    multica.add_argument(
        "--owner",
        metavar="USER",
        default="",
        help="make this user the owner of the sessions; default: no user",
    )
    multica.add_argument(
        "--agent",
        metavar="NAME=KEY",
        action="append",
        default=[],
        type=_pair,
        help="import multica's agent NAME (or id) as the agent KEY; default: the same name; repeatable",
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, key = text.rpartition("=")
    if not (name and equals and key):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=KEY")
    return name, key


def import_multica(args: argparse.Namespace) -> int:
    for name in ("tenant", "owner"):
        check_text(getattr(args, name), f"--{name}")
    report = asyncio.run(_import(args))
    if args.json:
        print_json(_as_json(report, dry_run=args.dry_run))
    else:
        _print(report, dry_run=args.dry_run)
    return 1 if report.busy else 0


async def _import(args: argparse.Namespace) -> ImportReport:
    from lastgood.store.multica import open_multica  # a database driver only where it is used

    options = ImportOptions(
        TenantId(args.tenant), args.owner, args.workspace, dict(args.agent), dry_run=args.dry_run
    )
    progress = Progress() if sys.stderr.isatty() else None
    try:
        async with open_multica(args.url) as source:
            store = await _open(args)
            try:
                importing = MulticaImport(source, store, RandomIds(), options)
                return await (importing.run(progress) if progress else importing.run())
            finally:
                await store.close()
    except InvalidRequest as error:  # of the URL and the options
        raise WrongUsage(error.message) from None
    finally:
        if progress:
            progress.clear()


async def _open(args: argparse.Namespace) -> Any:
    """A dry run neither creates the database nor takes its lock."""
    settings = settings_of(args)
    if not args.dry_run:
        return await open_store(settings.database, migrate=settings.migrate)
    try:
        return await open_store(settings.database, read_only=True)
    except NoDatabase:
        remark("the database does not exist yet; everything is new")
        return EmptyStore()


class EmptyStore:
    """A database that does not exist yet, for a dry run."""

    async def find_scope(self, *_: object) -> None:
        return None

    async def close(self) -> None:
        return None


class Progress:
    """One line on a terminal, written again at most twice a second."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 0.5

    def __call__(self, report: ImportReport) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.5
            done = f"{report.chats:,} chats and {report.issues:,} issues read"
            show_progress(f"importing: {done}, {report.turns:,} turns imported")

    def clear(self) -> None:
        show_progress("")


# -- for people and for scripts ------------------------------------------------


def _as_json(report: ImportReport, *, dry_run: bool) -> dict[str, Any]:
    return {"dry_run": dry_run} | asdict(report)


def _print(report: ImportReport, *, dry_run: bool) -> None:
    for name, key in report.agents.items():
        print_line(f"agent {one_line(name)} → {one_line(key)}")
    for one in report.runtimes:
        options = f"--worker-id {one.worker} --runtime {one.runtime}"
        print_line(one_line(f"runtime {one.name}: resume its native sessions with lastgood worker {options}"))
    read = f"{count(report.chats, 'chat')} and {count(report.issues, 'issue')}"
    made = f"{report.created} created, {report.extended} extended, {report.unchanged} unchanged"
    print_line(f"read {read}: sessions {made}, {report.empty} empty and left out")
    print_line(f"{'would import' if dry_run else 'imported'} {_amounts(report)}")
    if report.without_runtime:
        chats = count(report.without_runtime, "chat")
        print_line(
            f"{chats} named a native session whose runtime is not certain: it is not resumed, and the next "
            "turn starts with the transcript"
        )
    if report.left_out:
        print_line(
            f"left out {count(report.left_out, 'message')}: notices, failed replies and unanswered ones"
        )
    for chat in report.continued:
        print_line(f"chat {chat} was continued here, so its new messages were not imported")
    for chat in report.busy:
        print_line(f"the session of {chat} is in use and was not completed; run the import again")


def _amounts(report: ImportReport) -> str:
    return f"{count(report.turns, 'turn')} and {count(report.pointers, 'pointer')} to native sessions"
