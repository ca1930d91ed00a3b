"""`lastgood db`: looking after the database."""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass, field

from lastgood.cli.opening import TENANT, open_to_read, settings_of
from lastgood.cli.output import count, one_line, print_json, print_line
from lastgood.errors import NotFound, StoreUnavailable
from lastgood.flows.reading import MOST_IN_PAGE, SessionReader
from lastgood.model.ids import SessionId
from lastgood.model.sessions import Session
from lastgood.settings import Settings


@dataclass(slots=True)
class Report:
    sessions: int = 0
    turns: int = 0
    broken: dict[SessionId, str] = field(default_factory=dict)


def check_database(args: argparse.Namespace) -> int:
    report = asyncio.run(_check(settings_of(args)))
    if args.json:
        broken = [{"session": session, "problem": problem} for session, problem in report.broken.items()]
        print_json({"sessions": report.sessions, "turns": report.turns, "broken": broken})
    else:
        for session, problem in report.broken.items():
            print_line(f"{session} is broken: {one_line(problem)}")
        verdict = f"{len(report.broken)} broken" if report.broken else "all as committed"
        checked = f"{count(report.sessions, 'session')} with {count(report.turns, 'turn')}"
        print_line(f"checked {checked}: {verdict}")
    return 1 if report.broken else 0


async def _check(settings: Settings) -> Report:
    report = Report()
    async with open_to_read(settings) as sessions:
        cursor: int | None = None
        while True:
            page = await sessions.list(TENANT, limit=MOST_IN_PAGE, cursor=cursor)
            for session in page.sessions:
                await _check_session(sessions, session, report)
            cursor = page.next_cursor
            if cursor is None:
                return report


async def _check_session(sessions: SessionReader, session: Session, report: Report) -> None:
    report.sessions += 1
    report.turns += session.turns
    problem = await _problem(sessions, session)
    # It may have been deleted while we looked; that is no damage.
    if problem is not None and await _is_there(sessions, session):
        report.broken[session.id] = problem


async def _is_there(sessions: SessionReader, session: Session) -> bool:
    try:
        await sessions.get(TENANT, session.id)
    except NotFound:
        return False
    return True


async def _problem(sessions: SessionReader, session: Session) -> str | None:
    try:
        damage = (await sessions.read(TENANT, session.id)).chain.damage
        return damage.message if damage else None
    except StoreUnavailable:
        raise
    except NotFound as error:
        return error.message
    except Exception as error:  # whatever a damaged row does to its reader is a finding
        return f"its turns cannot be read: {error}"
