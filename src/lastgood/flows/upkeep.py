"""Retention: sessions that nobody has used for long are deleted, a bounded step at a time."""

from __future__ import annotations

from contextlib import suppress

from lastgood.errors import LastgoodError
from lastgood.flows.parts import Parts
from lastgood.flows.sessions import Sessions
from lastgood.model.sessions import Session

_PAGE = 200


class Retention:
    """Walks through all sessions, oldest first, and begins anew at the end.

    Starred ones are kept, and those that still owe a turn: a server that was down for longer than
    sessions are kept must not delete at its start what it is about to run.
    """

    def __init__(self, parts: Parts, sessions: Sessions, seconds: float) -> None:
        self._parts = parts
        self._sessions = sessions
        self._seconds = seconds
        self._after = 0

    async def step(self) -> int:
        """How many were deleted."""
        page = await self._parts.store.walk_sessions(after=self._after, limit=_PAGE)
        self._after = page[-1].number if len(page) == _PAGE else 0
        deleted = 0
        for session in page:
            if self._is_old(session) and not await self._owes(session):
                with suppress(LastgoodError):  # somebody else deleted it, or will
                    await self._sessions.delete(session.tenant, session.id, only_free=True)
                    deleted += 1
        return deleted

    async def _owes(self, session: Session) -> bool:
        queue = await self._parts.store.read_queue(session.tenant, session.id)
        return any(item.parked is None for item in queue)

    def _is_old(self, session: Session) -> bool:
        age = self._parts.clock.now() - session.updated_at
        return age > self._seconds and session.attempt is None and not session.starred
