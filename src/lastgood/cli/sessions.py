"""`lastgood sessions`: what may be done to sessions besides talking to them."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from lastgood.cli.opening import TENANT, open_to_read, session_of, settings_of
from lastgood.cli.output import (
    attempt_json,
    count,
    harmless,
    one_line,
    print_json,
    remark,
    session_json,
    turn_json,
    when,
)
from lastgood.core.intake import check_text
from lastgood.errors import LastgoodError, NoDatabase
from lastgood.flows.reading import Whole
from lastgood.model.attempts import Ask, Attempt
from lastgood.model.ids import TurnId
from lastgood.model.messages import Message
from lastgood.model.sessions import Session, SessionPage, Turn, TurnKind
from lastgood.wiring import open_lastgood

# -- reading -------------------------------------------------------------------


def list_sessions(args: argparse.Namespace) -> int:
    page = asyncio.run(_list(args))
    if args.json:
        print_json([session_json(session) for session in page.sessions])
    elif not page.sessions:
        print("no such sessions" if args.query or args.cursor else "no sessions yet")
    else:
        for session in page.sessions:
            print(_headline(session))
    if page.next_cursor is not None:
        remark(f"there are more; go on with --cursor {page.next_cursor}")
    return 0


async def _list(args: argparse.Namespace) -> SessionPage:
    try:
        async with open_to_read(settings_of(args)) as sessions:
            return await sessions.list(TENANT, limit=args.limit, cursor=args.cursor, query=args.query)
    except NoDatabase as error:
        remark(error.message)
        return SessionPage((), None)


def show_session(args: argparse.Namespace) -> int:
    whole, attempts = asyncio.run(_show(args))
    if args.json:
        plain: dict[str, object] = {
            "session": session_json(whole.session),
            "turns": [turn_json(turn) for turn in whole.turns],
        }
        if attempts is not None:
            plain["attempts"] = [attempt_json(attempt) for attempt in attempts]
        print_json(plain)
        return 0
    _print_session(whole)
    if attempts is not None:
        _print_attempts(attempts)
    return 0


async def _show(args: argparse.Namespace) -> tuple[Whole, Sequence[Attempt] | None]:
    async with open_to_read(settings_of(args)) as sessions:
        session = await session_of(sessions, args.id)
        attempts = await sessions.attempts(TENANT, session.id) if args.attempts else None
        return await sessions.read(TENANT, session.id), attempts


# -- writing -------------------------------------------------------------------


def fork_session(args: argparse.Namespace) -> int:
    forked = asyncio.run(_fork(args))
    if args.json:
        print_json(session_json(forked))
    else:
        print(forked.id)
    return 0


async def _fork(args: argparse.Namespace) -> Session:
    check_text(args.turn or "", "the turn id")
    async with open_lastgood(settings_of(args)) as app:
        session = await session_of(app.sessions, args.id)
        return await app.sessions.fork(TENANT, session.id, TurnId(args.turn) if args.turn else None)


def rename_session(args: argparse.Namespace) -> int:
    session = asyncio.run(_rename(args))
    if args.json:
        print_json(session_json(session))
    else:
        print(f"{session.id} is now called {one_line(session.title)!r}")
    return 0


async def _rename(args: argparse.Namespace) -> Session:
    async with open_lastgood(settings_of(args)) as app:
        session = await session_of(app.sessions, args.id)
        await app.sessions.rename(TENANT, session.id, args.title)
        return await app.sessions.get(TENANT, session.id)


def reset_session(args: argparse.Namespace) -> int:
    turn = asyncio.run(_reset(args))
    if args.json:
        print_json(turn_json(turn))
    else:
        print(f"{turn.session} starts anew after turn {turn.seq}")
    return 0


async def _reset(args: argparse.Namespace) -> Turn:
    async with open_lastgood(settings_of(args)) as app:
        session = await session_of(app.sessions, args.id)
        submitted = await app.turns.submit(Ask(TENANT, session.id, (), kind=TurnKind.RESET))
        outcome = await app.turns.wait(submitted)
        if outcome.turn is None:
            raise outcome.error or LastgoodError(f"the reset ended {outcome.status.value}")
        return outcome.turn


def delete_sessions(args: argparse.Namespace) -> int:
    deleted = asyncio.run(_delete(args))
    if args.json:
        print_json({"deleted": deleted})
    else:
        for session in deleted:
            print(f"deleted {session}")
    return 0


async def _delete(args: argparse.Namespace) -> list[str]:
    async with open_lastgood(settings_of(args)) as app:
        # All are found before the first is gone: -2 means the same thing throughout.
        found = [(await session_of(app.sessions, text)).id for text in args.ids]
        meant = list(dict.fromkeys(found))
        for session in meant:
            await app.sessions.delete(TENANT, session)
        return list(meant)


# -- for people ----------------------------------------------------------------


def _headline(session: Session) -> str:
    title = one_line(session.title) or "(no title)"
    turns = count(session.turns, "turn")
    return f"{session.id}  {when(session.updated_at)}  {session.status.value:7}  {turns:>9}  {title}"


def _print_session(whole: Whole) -> None:
    session = whole.session
    print(_headline(session))
    model = f", model {one_line(session.model)}" if session.model else ""
    print(f"agent {one_line(session.agent_key)}{model}")
    if session.forked_from is not None:
        source, at = session.forked_from
        print(f"forked from {source}" + (f" at {at}" if at else ""))
    for number, turn in enumerate(whole.turns, 1):
        print(f"\nturn {number}  {turn.id}  {when(turn.created_at)}  {one_line(turn.model)}".rstrip())
        if turn.kind is TurnKind.RESET:
            print("  (reset: the agent sees nothing from before this)")
        for message in turn.messages:
            _print_message(message)


def _print_message(message: Message) -> None:
    if message.content or not message.tool_calls:
        indent = "\n" + " " * (len(message.role) + 4)
        print(f"  {message.role.value}: {harmless(message.content).replace(chr(10), indent)}")
    for call in message.tool_calls:
        print(f"  {message.role.value} calls {one_line(call.name)} {one_line(call.arguments)}")


def _print_attempts(attempts: Sequence[Attempt]) -> None:
    print(f"\n{count(len(attempts), 'attempt')}")
    for attempt in attempts:
        print(f"  {attempt.id}  try {attempt.number} at {attempt.turn}: {attempt.status.value}")
        if attempt.error_code is not None:
            print(f"    error: {attempt.error_code}: {one_line(attempt.error_message or '')}")
        for name, value in attempt.decision.items():
            print(f"    {name}: {one_line(str(value))}")
