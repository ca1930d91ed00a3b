"""`lastgood sessions`: lists, shows and changes sessions."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from lastgood.cli import sessions_runtime
from lastgood.cli.backend import Backend, ReadBackend, check_place
from lastgood.cli.output import (
    attempt_json,
    branch_json,
    count,
    one_line,
    print_document,
    print_json,
    print_line,
    remark,
    session_json,
    turn_json,
    when,
)
from lastgood.cli.parser import (
    SESSION_ID,
    CommandParser,
    Commands,
    add_command,
    add_commands,
    add_server,
    page_size,
)
from lastgood.cli.session_view import headline, print_attempts, print_session, print_tool_calls
from lastgood.cli.startup import settings_of
from lastgood.client.models import SessionList
from lastgood.errors import InvalidRequest, NoDatabase

#: Statuses of attempts that ended without a turn.
_WITHOUT_TURN = frozenset({"failed", "cancelled", "interrupted"})
_Command = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]


def _command(work: _Command) -> Callable[[argparse.Namespace], int]:
    def command(args: argparse.Namespace) -> int:
        check_place(args)
        return asyncio.run(work(args))

    return command


def configure(parser: CommandParser) -> None:
    commands = add_commands(parser)
    _configure_reading(commands)
    _configure_writing(commands)
    sessions_runtime.configure(commands)
    for command in commands.choices.values():
        add_server(command)


def _configure_reading(commands: Commands) -> None:
    some = add_command(
        commands, "list", list_sessions, "list sessions, newest first", json="print a JSON array"
    )
    some.add_argument(
        "--limit",
        metavar="N",
        type=page_size,
        default=50,
        help="list at most N sessions, up to 200; default: 50",
    )
    some.add_argument("--cursor", metavar="C", type=_cursor, help="continue a previous list at this cursor")
    some.add_argument("--query", metavar="Q", default="", help="list only sessions whose title contains Q")

    show = add_command(
        commands, "show", show_session, "show a session and its turns", json="print one JSON object"
    )
    show.add_argument("id", metavar="ID", help=SESSION_ID)
    show.add_argument("--attempts", action="store_true", help="also show every attempt and its result")
    show.add_argument("--tools", action="store_true", help="also show every tool call and its outcome")

    branches = add_command(
        commands,
        "branches",
        list_branches,
        "list the branches of a session: turns that edits replaced",
        json="print a JSON array",
        details="`lastgood sessions fork ID --turn TURN` creates a session from any of these turns.",
    )
    branches.add_argument("id", metavar="ID", help=SESSION_ID)

    export = add_command(
        commands,
        "export",
        export_session,
        "export a session as JSON",
        json="with FILE, print a JSON object about the export; the session itself is always JSON",
        details="`lastgood sessions import` can import the file into any Lastgood database.",
    )
    export.add_argument("id", metavar="ID", help=SESSION_ID)
    export.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="file to create, which must not exist; default: standard output",
    )


def _configure_writing(commands: Commands) -> None:
    fork = add_command(
        commands,
        "fork",
        fork_session,
        "create a session that continues from a turn of another session",
        json="print a JSON object",
    )
    fork.add_argument("id", metavar="ID", help=SESSION_ID)
    fork.add_argument("--turn", metavar="TURN", help="turn to continue from; default: the last turn")

    rename = add_command(
        commands, "rename", rename_session, "set the title of a session", json="print a JSON object"
    )
    rename.add_argument("id", metavar="ID", help=SESSION_ID)
    rename.add_argument("title", metavar="TITLE", help="new title; quote it if it contains spaces")

    reset = add_command(
        commands,
        "reset",
        reset_session,
        "reset the context of a session",
        json="print a JSON object",
        details="The session keeps its turns, but the agent no longer sees them.",
    )
    reset.add_argument("id", metavar="ID", help=SESSION_ID)

    importing = add_command(
        commands,
        "import",
        import_session,
        "import an exported session",
        json="print a JSON object",
        details="Imports nothing if the hash of any turn does not match.",
    )
    importing.add_argument("file", metavar="FILE", help="exported file; - reads standard input")

    delete = add_command(
        commands,
        "delete",
        delete_sessions,
        "delete sessions permanently",
        json="print a JSON object",
        details="Deletes nothing if one of the sessions does not exist.",
    )
    delete.add_argument("ids", metavar="ID", nargs="+", help=SESSION_ID)


def _cursor(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 0 < int(text[:20]) < 2**63:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a cursor; use the one that a previous list printed"
        )
    return int(text)


@asynccontextmanager
async def _to_read(args: argparse.Namespace) -> AsyncIterator[ReadBackend]:
    if args.server is None:
        from lastgood.cli.local_reader import read_here  # a database driver only where it is used

        async with read_here(settings_of(args)) as reader:
            yield reader
    else:
        async with _to_write(args) as place:
            yield place


@asynccontextmanager
async def _to_write(args: argparse.Namespace) -> AsyncIterator[Backend]:
    if args.server is None:
        from lastgood.cli.local import LocalBackend, open_here

        async with open_here(settings_of(args)) as app:
            yield LocalBackend(app)
    else:
        from lastgood.cli.remote import open_there  # an HTTP client only where it is used

        async with open_there(args) as place:
            yield place


# -- reading -------------------------------------------------------------------


@_command
async def list_sessions(args: argparse.Namespace) -> int:
    page = await _list(args)
    if args.json:
        print_json([session_json(session) for session in page.sessions])
    elif not page.sessions:
        print_line("no matching sessions" if args.query or args.cursor else "no sessions")
    else:
        for session in page.sessions:
            print_line(headline(session))
    if page.next_cursor is not None:
        remark(f"more sessions: continue with --cursor {page.next_cursor}")
    return 0


async def _list(args: argparse.Namespace) -> SessionList:
    try:
        async with _to_read(args) as sessions:
            return await sessions.page(limit=args.limit, cursor=args.cursor, query=args.query)
    except NoDatabase as error:
        remark(error.message)
        return SessionList((), None)


@_command
async def show_session(args: argparse.Namespace) -> int:
    async with _to_read(args) as sessions:
        session = await sessions.find(args.id)
        attempts = await sessions.attempts(session.id) if args.attempts or not args.json else None
        calls = await sessions.tool_calls(session.id) if args.tools else None
        turns = await sessions.turns(session.id)
    if args.json:
        plain: dict[str, object] = {
            "session": session_json(session),
            "turns": [turn_json(turn) for turn in turns],
        }
        if attempts is not None:
            plain["attempts"] = [attempt_json(attempt) for attempt in attempts]
        if calls is not None:
            plain["tools"] = [asdict(call) for call in calls]
        print_json(plain)
        return 0
    print_session(session, turns)
    if args.attempts:
        print_attempts(attempts or ())
    elif lost := sum(attempt.status in _WITHOUT_TURN for attempt in attempts or ()):
        remark(f"{count(lost, 'attempt')} committed nothing; --attempts shows every attempt")
    if calls is not None:
        print_tool_calls(calls)
    return 0


@_command
async def list_branches(args: argparse.Namespace) -> int:
    async with _to_read(args) as sessions:
        session = await sessions.find(args.id)
        branches = await sessions.branches(session.id)
    if args.json:
        print_json([branch_json(branch) for branch in branches])
    elif not branches:
        print_line("no branches: no edit has replaced a turn of this session")
    for branch in () if args.json else branches:
        created = when(branch.created_at.timestamp())
        start = f"after {branch.after}" if branch.after else "from the start"
        print_line(f"{branch.head}  {created}  {count(branch.turns, 'turn'):>9}  {start}")
    return 0


@_command
async def export_session(args: argparse.Namespace) -> int:
    async with _to_read(args) as sessions:
        session = await sessions.find(args.id)
        async with aclosing(sessions.export(session.id)) as pieces:
            if args.file is None or args.file == "-":
                await print_document(pieces)
                return 0
            await _write_new(Path(args.file), pieces)
    if args.json:
        print_json({"session": session.id, "file": args.file, "turns": session.turns})
    else:
        print_line(f"exported {session.id} with {count(session.turns, 'turn')} to {one_line(args.file)}")
    return 0


async def _write_new(path: Path, pieces: AsyncGenerator[bytes, None]) -> None:
    with _new_file(path) as file:
        async for piece in pieces:
            file.write(piece)
        file.write(b"\n")


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """Creates a file that only its owner can read: it contains messages. Never overwrites a file."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidRequest(f"{path} already exists; choose another name or remove it") from None
    except OSError as error:
        raise InvalidRequest(f"cannot write {path}: {error.strerror}") from None
    try:
        with open(number, "wb") as file:
            yield file
    except BaseException as error:
        path.unlink()  # an incomplete export cannot be imported
        if isinstance(error, OSError):
            raise InvalidRequest(f"cannot write {path}: {error.strerror}; nothing was exported") from None
        raise


# -- writing -------------------------------------------------------------------


@_command
async def import_session(args: argparse.Namespace) -> int:
    document = _read_document(args.file)
    async with _to_write(args) as sessions:
        session = await sessions.take_in(document)
    if args.json:
        print_json(session_json(session))
    else:
        print_line(session.id)
    return 0


def _read_document(name: str) -> dict[str, Any]:
    try:
        body = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        document = json.loads(body)
    except OSError as error:
        raise InvalidRequest(f"cannot read {name}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InvalidRequest(
            f"{name} is not JSON; use a file written by `lastgood sessions export`"
        ) from None
    if not isinstance(document, dict):
        raise InvalidRequest(
            f"{name} is not an exported session; use a file written by `lastgood sessions export`"
        )
    return document


@_command
async def fork_session(args: argparse.Namespace) -> int:
    async with _to_write(args) as sessions:
        session = await sessions.find(args.id)
        forked = await sessions.fork(session.id, args.turn)
    if args.json:
        print_json(session_json(forked))
    else:
        print_line(forked.id)
    return 0


@_command
async def rename_session(args: argparse.Namespace) -> int:
    async with _to_write(args) as sessions:
        session = await sessions.rename((await sessions.find(args.id)).id, args.title)
    if args.json:
        print_json(session_json(session))
    else:
        print_line(f"renamed {session.id} to {one_line(session.title)!r}")
    return 0


@_command
async def reset_session(args: argparse.Namespace) -> int:
    async with _to_write(args) as sessions:
        session = await sessions.find(args.id)
        turn = await sessions.reset(session.id)
    if args.json:
        print_json(turn_json(turn))
    else:
        print_line(f"reset {session.id} at turn {turn.seq}")
    return 0


@_command
async def delete_sessions(args: argparse.Namespace) -> int:
    async with _to_write(args) as sessions:
        # All are found before the first is gone: -2 means the same thing throughout.
        found = [(await sessions.find(text)).id for text in args.ids]
        deleted = list(dict.fromkeys(found))
        for session in deleted:
            await sessions.delete(session)
    if args.json:
        print_json({"deleted": deleted})
    else:
        for session in deleted:
            print_line(f"deleted {session}")
    return 0
