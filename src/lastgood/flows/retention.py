"""Retention: sessions that nobody has used for long are deleted, a bounded step at a time."""

from __future__ import annotations

from lastgood.flows.dependencies import Dependencies
from lastgood.flows.sessions import Sessions
from lastgood.model.sessions import Session

_PAGE = 200


class Retention:
    """Walks through all sessions, oldest first, and starts again at the end. Keeps starred sessions, and
    those with a turn to run: a server that was down for longer than the retention time must not delete at its
    start what it is about to run.
    """

    def __init__(self, deps: Dependencies, sessions: Sessions, seconds: float) -> None:
        self._deps = deps
        self._sessions = sessions
        self._seconds = seconds
        self._after = 0

    async def step(self) -> int:
        """How many were deleted."""
        page = await self._deps.store.walk_sessions(after=self._after, limit=_PAGE)
        self._after = page[-1].number if len(page) == _PAGE else 0
        since = self._deps.clock.now() - self._seconds
        deleted = 0
        for session in page:
            # Most are not old; that they are, and nobody uses them now, the database decides.
            if (
                session.updated_at < since
                and not session.starred
                and not await self._has_durable_turn(session)
            ):
                deleted += await self._sessions.delete_unused(session.tenant, session.id, since)
        return deleted

    async def _has_durable_turn(self, session: Session) -> bool:
        store, tenant = self._deps.store, session.tenant
        if any(item.parked is None for item in await store.read_queue(tenant, session.id)):
            return True
        if session.runtime_id is None:
            return False
        return any(not task.held for task in await store.open_tasks(tenant, session.id))
