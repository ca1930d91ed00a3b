"""Attempts on SQLite: begin, journal, commit, and every other end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import apsw
import orjson

from lastgood.model.attempts import (
    Ask,
    Attempt,
    AttemptStatus,
    Begin,
    BeginConflict,
    Begun,
    Commit,
    CommitResult,
    Committed,
    Hold,
    Step,
    TurnRequest,
)
from lastgood.model.audit import AuditEntry
from lastgood.model.events import Event
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.queue import Parking
from lastgood.model.tasks import TaskEnd
from lastgood.model.usage import NO_USE, AttemptUse
from lastgood.model.webhooks import WebhookKind
from lastgood.store.announcements import announcement, of_failure, of_question
from lastgood.store.audit import of_audit
from lastgood.store.queue_rows import of_parking
from lastgood.store.rows import (
    EVENT_LEAP,
    of_begin,
    of_commit,
    of_hold,
    of_step,
    to_attempt,
    writable,
)
from lastgood.store.session_rows import to_session
from lastgood.store.sqlite.attempt_reads import SqliteAttemptReads
from lastgood.store.sqlite.events import insert_events, touch_if_held
from lastgood.store.sqlite.queue import claim_queued
from lastgood.store.sqlite.work import SqliteStatements
from lastgood.store.task_ends import end_claim
from lastgood.store.usage import uses_of_end, uses_of_steps, uses_of_wait
from lastgood.store.work_access import ClaimLost, run_to_end


class _BeginConflicts(Exception):
    """Rolls a begin back."""


class SqliteAttempts(SqliteAttemptReads):
    async def begin_if_free(self, begin: Begin, events: Sequence[Event]) -> Begun | BeginConflict:
        parameters = of_begin(begin) | {"events": len(events)}

        def work(connection: apsw.Connection) -> Begun:
            sql = self.db.sql
            row = connection.execute(sql["hold_session"], parameters).fetchone()
            if row is None:
                raise _BeginConflicts
            session = to_session(row)
            model = begin.ask.model or session.model or begin.agent_model
            if not begin.again:
                try:
                    connection.execute(sql["insert_request"], parameters)
                except apsw.ConstraintError:  # the key was used before
                    raise _BeginConflicts from None
            base = begin.base_at(session.head)
            more = {
                "fence": session.fence,
                "base": base.turn if base else None,
                "head": session.head.turn if session.head else None,
                "model": model,
            }
            number = connection.execute(sql["insert_attempt"], parameters | more).fetchone()
            if number is None:
                raise _BeginConflicts
            if begin.continues:
                connection.execute(sql["adopt_steps"], parameters)
            if not claim_queued(connection, sql, begin, parameters):
                raise _BeginConflicts
            insert_events(connection, sql, session.id, session.last_event_seq, events)
            hold = Hold(session.tenant, session.id, begin.attempt, session.fence)
            return Begun(hold, begin.turn, number[0], model, base, session)

        try:
            return await self.db.write(work)
        except _BeginConflicts:
            # Read after the begin lost, so it may be free again by now; then it is simply tried again.
            with self.db.snapshot():
                return self._conflict_now(begin.ask, begin.turn if begin.again else None)

    async def look_up(self, ask: Ask) -> BeginConflict:
        with self.db.snapshot():
            return self._conflict_now(ask)

    def _conflict_now(self, ask: Ask, again: TurnId | None = None) -> BeginConflict:
        scope = {"tenant": ask.tenant}
        row = self.db.row("get_session", scope | {"session": ask.session})
        if row is None:
            return BeginConflict(None)
        session = to_session(row)
        holder = None
        if session.attempt is not None:
            holder = self._attempt("get_attempt", scope | {"attempt": session.attempt})
        expired = self.db.row("is_expired", {"session": ask.session}) is not None
        conflict = BeginConflict(session, holder, expired)
        prior = self._prior(ask, again)
        if prior is None:
            return conflict
        turn = scope | {"turn": prior.turn}
        tried, age = self._attempt("newest_attempt", turn), self.db.row("attempt_age", turn)
        return replace(conflict, prior=prior, prior_attempt=tried, prior_age_seconds=age[0] if age else 0.0)

    def _prior(self, ask: Ask, again: TurnId | None) -> TurnRequest | None:
        scope = {"tenant": ask.tenant, "session": ask.session}
        if ask.key is not None:
            return self._request("request_by_key", scope | {"key": ask.key})
        turn: str | None = again
        if ask.is_retry:
            body = {"fingerprint": ask.fingerprint, "caller": ask.caller}
            turn = (self.db.row("newest_by_body", scope | body) or (None,))[0]
        return self._request("read_request", scope | {"turn": turn}) if turn else None

    async def close_requests(
        self, tenant: TenantId, session: SessionId, *, fingerprint: str, caller: str
    ) -> None:
        named = {"tenant": tenant, "session": session, "fingerprint": fingerprint, "caller": caller}
        if self.db.row("newest_by_body", named) is None:
            return  # nearly always; a flood of refused requests must not queue for the writer as well

        def work(connection: apsw.Connection) -> None:
            connection.execute(self.db.sql["close_requests"], named)

        await self.db.write(work, durable=False)

    async def journal_if_held(
        self,
        hold: Hold,
        steps: Sequence[Step],
        events: Sequence[Event],
        *,
        batch: int | None = None,
        audit: AuditEntry | None = None,
    ) -> bool:
        def work(connection: apsw.Connection) -> bool:
            if touch_if_held(connection, self.db.sql, hold, events, batch=batch) is None:
                return False
            for step in steps:
                row = of_step(step, hold.session) | {"attempt": hold.attempt}
                connection.execute(self.db.sql["insert_step"], row)
                self._count(connection, hold, uses_of_steps((step,)))
                if step.queued:
                    steer = {"number": step.queued, "attempt": hold.attempt}
                    connection.execute(self.db.sql["journal_steer"], steer)
            if audit is not None:
                connection.execute(self.db.sql["insert_audit"], of_audit(audit)).fetchall()
            return True

        return await self.db.write(work, durable=audit is not None)

    async def is_stored(self, hold: Hold, batch: int) -> bool:
        return self.db.row("is_stored", of_hold(hold) | {"batch": batch}) is not None

    async def commit_if_head(
        self,
        hold: Hold,
        commit: Commit,
        events: Sequence[Event],
        task: TaskEnd | None = None,
        use: AttemptUse = NO_USE,
    ) -> CommitResult:
        parameters = of_hold(hold) | of_commit(commit) | {"events": len(events)}
        parameters |= announcement(WebhookKind.TURN_COMMITTED)

        def work(connection: apsw.Connection) -> CommitResult:
            sql = self.db.sql
            row = connection.execute(sql["commit_head"], parameters).fetchone()
            if row is None:
                orphaned = connection.execute(sql["is_orphaned"], parameters).fetchone()
                return CommitResult(Committed.ORPHANED if orphaned else Committed.LOST)
            connection.execute(sql["insert_turn"], parameters | {"segment": row[2]})
            if commit.replaces is not None:
                connection.execute(sql["keep_branch"], parameters)
            connection.execute(sql["forget_input"], parameters)
            end = {
                "status": AttemptStatus.COMMITTED.value,
                "code": None,
                "message": None,
                "died": False,
                "last_event": row[0],
            }
            connection.execute(sql["end_attempt"], parameters | end)
            self._count(connection, hold, uses_of_end(AttemptStatus.COMMITTED, use))
            if row[1]:
                connection.execute(sql["settle_queued"], parameters)
            insert_events(connection, sql, hold.session, row[0], events, commit.turn.created_at)
            connection.execute(sql["announce_attempt"], parameters)
            self._end_claim(connection, hold, task)
            return CommitResult(Committed.YES, row[0])

        try:
            return await self.db.write(work)
        except ClaimLost:
            return CommitResult(Committed.LOST)

    def _count(self, connection: apsw.Connection, hold: Hold, uses: Sequence[Mapping[str, Any]]) -> None:
        for use in uses:
            connection.execute(self.db.sql["count_use"], {"attempt": hold.attempt, **use})

    def _end_claim(self, connection: apsw.Connection, hold: Hold, task: TaskEnd | None) -> None:
        if task is not None:
            run_to_end(end_claim(SqliteStatements(connection, self.db.sql), hold, task))

    async def finish_if_held(
        self,
        hold: Hold,
        status: AttemptStatus,
        error: tuple[str, str] | None,
        events: Sequence[Event],
        *,
        only_if_expired: bool = False,
        died: bool = False,
        parking: Parking | None = None,
        task: TaskEnd | None = None,
        use: AttemptUse = NO_USE,
        audit: AuditEntry | None = None,
    ) -> bool:
        leap = EVENT_LEAP if status is AttemptStatus.INTERRUPTED else 0
        code, message = error or (None, None)
        parameters = (
            of_hold(hold)
            | {
                "only_if_expired": only_if_expired,
                "died": died,
                "status": status.value,
                "code": code,
                "message": message and writable(message),
                "events": len(events) + leap,
            }
            | of_parking(parking)
            | of_failure(status, error, task)
        )

        def work(connection: apsw.Connection) -> bool:
            sql = self.db.sql
            row = connection.execute(sql["free_session"], parameters).fetchone()
            if row is None:
                return False
            connection.execute(sql["end_attempt"], parameters | {"last_event": row[0]})
            self._count(connection, hold, uses_of_end(status, use))
            if row[1]:
                connection.execute(sql["give_back_queued"], parameters)
            if parameters["park_others"] is not None:
                connection.execute(sql["park_others"], parameters)
            insert_events(connection, sql, hold.session, row[0], events)
            if audit is not None:
                connection.execute(sql["insert_audit"], of_audit(audit)).fetchall()
            if parameters["announces"] is not None:
                connection.execute(sql["announce_attempt"], parameters)
            self._end_claim(connection, hold, task)
            return True

        try:
            return await self.db.write(work)
        except ClaimLost:
            return False

    async def wait_if_held(
        self,
        hold: Hold,
        question: dict[str, Any],
        seconds: float,
        events: Sequence[Event],
        use: AttemptUse = NO_USE,
    ) -> bool:
        asked = {"question": orjson.dumps(question).decode(), "seconds": seconds, "events": len(events)}
        parameters = of_hold(hold) | asked | of_question(question)

        def work(connection: apsw.Connection) -> bool:
            row = connection.execute(self.db.sql["give_lease_back"], parameters).fetchone()
            if row is None:
                return False
            connection.execute(self.db.sql["set_waiting"], parameters)
            self._count(connection, hold, uses_of_wait(use))
            connection.execute(self.db.sql["announce_attempt"], parameters)
            insert_events(connection, self.db.sql, hold.session, row[0], events)
            return True

        return await self.db.write(work)

    async def resume_if_waiting(
        self, hold: Hold, holder: str, lease_seconds: float, audit: AuditEntry | None = None
    ) -> Hold | None:
        parameters = of_hold(hold) | {"holder": holder, "lease": lease_seconds}

        def work(connection: apsw.Connection) -> Hold | None:
            row = connection.execute(self.db.sql["hold_again"], parameters).fetchone()
            if row is None:
                return None
            connection.execute(self.db.sql["set_running"], parameters | {"fence": row[0]})
            if audit is not None:
                connection.execute(self.db.sql["insert_audit"], of_audit(audit)).fetchall()
            return Hold(hold.tenant, hold.session, hold.attempt, row[0])

        return await self.db.write(work)

    async def set_orphaned(self, hold: Hold, orphaned: bool) -> bool:
        return await self._change("set_orphaned", of_hold(hold) | {"orphaned": orphaned})

    async def ask_cancel(self, hold: Hold) -> bool:
        return await self._change("ask_cancel", of_hold(hold))

    async def _change(self, name: str, parameters: dict[str, Any]) -> bool:
        def work(connection: apsw.Connection) -> bool:
            connection.execute(self.db.sql[name], parameters)
            return connection.changes() == 1

        return await self.db.write(work)

    async def renew_leases(self, holds: Sequence[Hold], lease_seconds: float) -> dict[AttemptId, Attempt]:
        def work(connection: apsw.Connection) -> dict[AttemptId, Attempt]:
            held: dict[AttemptId, Attempt] = {}
            for hold in holds:
                parameters = of_hold(hold) | {"lease": lease_seconds}
                connection.execute(self.db.sql["renew_lease"], parameters)
                if connection.changes() == 1:
                    row = connection.execute(self.db.sql["get_attempt"], parameters).fetchall()[0]
                    held[hold.attempt] = to_attempt(row)
            return held

        return await self.db.write(work, durable=False)
