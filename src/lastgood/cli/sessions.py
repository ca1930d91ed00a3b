"""`lastgood sessions`: what may be done to sessions besides talking to them."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from lastgood.cli.backend import Backend, ReadBackend, check_place
from lastgood.cli.local import LocalBackend, open_here, read_here
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
from lastgood.cli.startup import settings_of
from lastgood.client.models import AttemptInfo, SessionInfo, SessionList, TurnInfo
from lastgood.errors import InvalidRequest, NoDatabase
from lastgood.model.messages import Message

_Command = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]


def _command(work: _Command) -> Callable[[argparse.Namespace], int]:
    def command(args: argparse.Namespace) -> int:
        check_place(args)
        return asyncio.run(work(args))

    return command


@asynccontextmanager
async def _to_read(args: argparse.Namespace) -> AsyncIterator[ReadBackend]:
    if args.server is None:
        async with read_here(settings_of(args)) as reader:
            yield reader
    else:
        async with _to_write(args) as place:
            yield place


@asynccontextmanager
async def _to_write(args: argparse.Namespace) -> AsyncIterator[Backend]:
    if args.server is None:
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
            print_line(_headline(session))
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
        attempts = await sessions.attempts(session.id) if args.attempts else None
        turns = await sessions.turns(session.id)
    if args.json:
        plain: dict[str, object] = {
            "session": session_json(session),
            "turns": [turn_json(turn) for turn in turns],
        }
        if attempts is not None:
            plain["attempts"] = [attempt_json(attempt) for attempt in attempts]
        print_json(plain)
        return 0
    _print_session(session, turns)
    if attempts is not None:
        _print_attempts(attempts)
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
    """For its owner alone: it holds what was said. What is there already is left as it is."""
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
        path.unlink()  # half a session is none
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


# -- for people ----------------------------------------------------------------


def _headline(session: SessionInfo) -> str:
    title = one_line(session.title) or "(no title)"
    turns = count(session.turns, "turn")
    updated = when(session.updated_at.timestamp())
    return f"{session.id}  {updated}  {session.status:7}  {turns:>9}  {title}"


def _print_session(session: SessionInfo, turns: Sequence[TurnInfo]) -> None:
    print_line(_headline(session))
    model = f", model {one_line(session.model)}" if session.model else ""
    print_line(f"agent {one_line(session.agent_key)}{model}")
    if session.forked_from is not None:
        source, at = session.forked_from
        print_line(f"forked from {source}" + (f" at {at}" if at else ""))
    for number, turn in enumerate(turns, 1):
        created = when(turn.created_at.timestamp())
        print_line(f"\nturn {number}  {turn.id}  {created}  {one_line(turn.model)}".rstrip())
        if turn.kind == "reset":
            print_line("  (reset: the agent does not see earlier turns)")
        for message in turn.messages:
            _print_message(message)


def _print_message(message: Message) -> None:
    if message.content or not message.tool_calls:
        indent = "\n" + " " * (len(message.role) + 4)
        print_line(f"  {message.role.value}: {message.content.replace(chr(10), indent)}")
    for call in message.tool_calls:
        print_line(f"  {message.role.value} calls {one_line(call.name)} {one_line(call.arguments)}")


def _print_attempts(attempts: Sequence[AttemptInfo]) -> None:
    print_line(f"\n{count(len(attempts), 'attempt')}")
    for attempt in attempts:
        print_line(f"  {attempt.id}  attempt {attempt.number} of {attempt.turn}: {attempt.status}")
        if attempt.replaces is not None:
            print_line(f"    edit: after {attempt.base or 'the start'}, replaces turns to {attempt.replaces}")
        if attempt.error_code is not None:
            print_line(f"    error: {attempt.error_code}: {one_line(attempt.error_message or '')}")
        for name, value in attempt.decision.items():
            print_line(f"    {name}: {one_line(str(value))}")
