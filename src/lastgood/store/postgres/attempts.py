"""Attempts on PostgreSQL: begin, journal, commit, and every other end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import orjson

from lastgood.errors import HistoryDamaged
from lastgood.model.attempts import (
    NO_LIMIT,
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
    Interrupted,
    Step,
    TurnRequest,
    UnreadableAttempt,
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
from lastgood.store.columns import COLUMNS
from lastgood.store.postgres.database import AlreadyThere, PostgresDatabase
from lastgood.store.postgres.event_arrays import of_events
from lastgood.store.queue_rows import of_parking
from lastgood.store.rows import (
    EVENT_LEAP,
    Row,
    of_begin,
    of_commit,
    of_hold,
    of_step,
    readable,
    to_attempt,
    to_request,
    to_steps,
    writable,
)
from lastgood.store.session_rows import to_session
from lastgood.store.task_ends import end_claim
from lastgood.store.usage import as_arrays, uses_of_end, uses_of_steps, uses_of_wait
from lastgood.store.work_access import ClaimLost

#: Lost races of a begin: its key was used meanwhile, or its turn was tried meanwhile.
LOST_RACES = frozenset({"requests_by_key", "requests_pkey", "attempts_turn_id_number_key"})


class PostgresAttempts:
    db: PostgresDatabase

    async def begin_if_free(self, begin: Begin, events: Sequence[Event]) -> Begun | BeginConflict:
        parameters = of_begin(begin) | of_events(events)
        name = "begin_queued_if_free" if parameters["claims"] else "begin_if_free"
        if begin.again:
            name = "begin_again_if_free"
        try:
            rows = await self.db.write(name, parameters)
        except AlreadyThere as found:
            if found.constraint not in LOST_RACES:
                raise
            rows = []
        if not rows:
            # Read after the begin lost, so it may be free again by now; then it is simply tried again.
            return await self._conflict_now(begin.ask, begin.turn if begin.again else None)
        *row, number, model = rows[0]
        session = to_session(row)
        hold = Hold(session.tenant, session.id, begin.attempt, session.fence)
        return Begun(hold, begin.turn, number, model, begin.base_at(session.head), session)

    async def look_up(self, ask: Ask) -> BeginConflict:
        return await self._conflict_now(ask)

    async def _conflict_now(self, ask: Ask, again: TurnId | None = None) -> BeginConflict:
        parameters = {
            "tenant": ask.tenant,
            "session": ask.session,
            "key": ask.key,
            "again": again,
            "is_retry": ask.is_retry,
            "fingerprint": ask.fingerprint,
            "caller": ask.caller,
        }
        row = await self.db.row("standing", parameters)
        if row is None:
            return BeginConflict(None)
        values = iter(row)
        session = to_session(_take(values, "session"))
        expired, prior_age_seconds = next(values), next(values)
        # Taken in the order in which the statement selects them.
        return BeginConflict(
            session,
            lease_expired=expired,
            prior_age_seconds=prior_age_seconds,
            holder=_attempt(values),
            prior=_request(values),
            prior_attempt=_attempt(values),
        )

    async def close_requests(
        self, tenant: TenantId, session: SessionId, *, fingerprint: str, caller: str
    ) -> None:
        named = {"tenant": tenant, "session": session, "fingerprint": fingerprint, "caller": caller}
        await self.db.write("close_requests", named)

    async def journal_if_held(
        self,
        hold: Hold,
        steps: Sequence[Step],
        events: Sequence[Event],
        *,
        batch: int | None = None,
        audit: AuditEntry | None = None,
    ) -> bool:
        parameters = of_hold(hold) | of_events(events, batch=batch) | _of_steps(steps, hold.session)
        parameters |= as_arrays(uses_of_steps(steps))
        name = "journal_steers_if_held" if parameters["steers"] else "journal_if_held"
        while True:
            try:
                if audit is None:
                    return bool(await self.db.write(name, parameters))
                async with self.db.transaction() as transaction:
                    row = await transaction.row(name, parameters)
                    if row is not None:
                        await transaction.row("insert_audit", of_audit(audit))
                    return row is not None
            except AlreadyThere as found:
                # Another journal of this attempt, whose answer was perhaps lost, was under
                # way and took the numbers. It is through, so the next numbers are known now.
                if found.constraint != "steps_pkey":
                    raise

    async def is_stored(self, hold: Hold, batch: int) -> bool:
        return await self.db.row("is_stored", of_hold(hold) | {"batch": batch}) is not None

    async def commit_if_head(
        self,
        hold: Hold,
        commit: Commit,
        events: Sequence[Event],
        task: TaskEnd | None = None,
        use: AttemptUse = NO_USE,
    ) -> CommitResult:
        parameters = of_hold(hold) | of_commit(commit) | of_events(events, at=commit.turn.created_at)
        parameters |= announcement(WebhookKind.TURN_COMMITTED)
        parameters |= as_arrays(uses_of_end(AttemptStatus.COMMITTED, use))
        row = await self._end("commit_if_head", "settle_queued", parameters, hold, task)
        if row is None:
            return CommitResult(Committed.LOST)
        return CommitResult(Committed.ORPHANED if row[0] is None else Committed.YES, row[0])

    async def _end(
        self,
        name: str,
        what_it_has: str,
        parameters: dict[str, Any],
        hold: Hold,
        task: TaskEnd | None,
        audit: AuditEntry | None = None,
    ) -> Row | None:
        """None: the hold is gone, or the claim. One statement, unless the attempt has something of the
        queue, stops that, is a task's, or is recorded."""
        stops_queue = parameters.get("park_others") is not None
        if task is None and audit is None and not stops_queue:
            rows = await self.db.write(name, parameters | {"with_queue": False})
            if rows:
                return rows[0]
        try:
            async with self.db.transaction() as transaction:
                row = await transaction.row(name, parameters | {"with_queue": True})
                if row is not None and row[0] is not None:
                    await transaction.row(what_it_has, parameters)
                    if stops_queue:
                        await transaction.row("park_others", parameters)
                    if audit is not None:
                        await transaction.row("insert_audit", of_audit(audit))
                    if task is not None:
                        await end_claim(transaction, hold, task)
                return row
        except ClaimLost:
            return None

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
        end = {
            "only_if_expired": only_if_expired,
            "died": died,
            "status": status.value,
            "code": code,
            "message": message and writable(message),
        }
        if parking is not None:
            parking = replace(parking, reason=writable(parking.reason))
        parameters = of_hold(hold) | of_events(events, leap=leap) | end | of_parking(parking)
        parameters |= of_failure(status, error, task) | as_arrays(uses_of_end(status, use))
        ended = await self._end("finish_if_held", "give_back_queued", parameters, hold, task, audit)
        return ended is not None

    async def wait_if_held(
        self,
        hold: Hold,
        question: dict[str, Any],
        seconds: float,
        events: Sequence[Event],
        use: AttemptUse = NO_USE,
    ) -> bool:
        asked = {"question": orjson.dumps(question).decode(), "seconds": seconds} | of_question(question)
        asked |= as_arrays(uses_of_wait(use))
        return bool(await self.db.write("wait_if_held", of_hold(hold) | of_events(events) | asked))

    async def resume_if_waiting(
        self, hold: Hold, holder: str, lease_seconds: float, audit: AuditEntry | None = None
    ) -> Hold | None:
        parameters = of_hold(hold) | {"holder": holder, "lease": lease_seconds}
        async with self.db.transaction() as transaction:
            row = await transaction.row("resume_if_waiting", parameters)
            if row is not None and audit is not None:
                await transaction.row("insert_audit", of_audit(audit))
        return Hold(hold.tenant, hold.session, hold.attempt, row[0]) if row else None

    async def set_orphaned(self, hold: Hold, orphaned: bool) -> bool:
        return bool(await self.db.write("set_orphaned", of_hold(hold) | {"orphaned": orphaned}))

    async def ask_cancel(self, hold: Hold) -> bool:
        return bool(await self.db.write("ask_cancel", of_hold(hold)))

    async def renew_leases(self, holds: Sequence[Hold], lease_seconds: float) -> dict[AttemptId, Attempt]:
        parameters = of_holds(holds, lease_seconds)
        return held_of(await self.db.write("renew_leases", parameters))

    async def expired_attempts(self, limit: int) -> tuple[Attempt, ...]:
        return tuple(readable(await self.db.rows("expired_attempts", {"limit": limit}), to_attempt))

    async def running_attempts(self, limit: int) -> tuple[Attempt, ...]:
        return tuple(readable(await self.db.rows("running_attempts", {"limit": limit}), to_attempt))

    async def failures(self, tenant: TenantId, *, age_seconds: float, limit: int) -> tuple[Attempt, ...]:
        page = {"tenant": tenant, "age": age_seconds, "limit": limit}
        return tuple(readable(await self.db.rows("failures", page), to_attempt))

    async def waiting_sessions(self, tenant: TenantId, *, limit: int) -> tuple[SessionId, ...]:
        rows = await self.db.rows("waiting_sessions", {"tenant": tenant, "limit": limit})
        return tuple(SessionId(str(row[0])) for row in rows)

    async def interrupted_asks(
        self, limit: int, *, deaths_below: int, skip: int = 0
    ) -> tuple[Interrupted | UnreadableAttempt, ...]:
        page = {"limit": limit, "deaths_below": deaths_below, "skip": skip}
        found: list[tuple[Attempt, Row, TurnId | None, int]] = []
        for row in await self.db.rows("interrupted_asks", page):
            values = iter(row)
            attempt = to_attempt(_take(values, "attempt"))
            found.append((attempt, _take(values, "request"), next(values), next(values)))
        steps: defaultdict[str, list[Row]] = defaultdict(list)
        attempts = [attempt.id for attempt, *_ in found]
        for row in await self.db.rows("steps_of", {"attempts": attempts}) if found else ():
            steps[row[1]].append(row)
        return tuple(
            _interrupted(tried, asked, steps[tried.id], head, deaths) for tried, asked, head, deaths in found
        )

    async def get_attempt(self, tenant: TenantId, attempt: AttemptId) -> Attempt | None:
        row = await self.db.row("get_attempt", {"tenant": tenant, "attempt": attempt})
        return to_attempt(row) if row else None

    async def list_attempts(
        self, tenant: TenantId, session: SessionId, *, after: int = 0, limit: int = NO_LIMIT
    ) -> tuple[Attempt, ...]:
        page = {"tenant": tenant, "session": session, "after": after, "limit": limit}
        return tuple(to_attempt(row) for row in await self.db.rows("list_attempts", page))

    async def newest_attempt(self, tenant: TenantId, turn: TurnId) -> Attempt | None:
        row = await self.db.row("newest_attempt", {"tenant": tenant, "turn": turn})
        return to_attempt(row) if row else None

    async def read_request(self, tenant: TenantId, turn: TurnId) -> TurnRequest | None:
        row = await self.db.row("read_request", {"tenant": tenant, "turn": turn})
        return to_request(row) if row else None

    async def read_steps(self, tenant: TenantId, attempt: AttemptId) -> tuple[Step, ...]:
        return to_steps(await self.db.rows("read_steps", {"tenant": tenant, "attempt": attempt}))


def _interrupted(
    attempt: Attempt, request: Row, steps: Sequence[Row], head: TurnId | None, deaths: int
) -> Interrupted | UnreadableAttempt:
    """One that is damaged must not keep the others from being read."""
    try:
        return Interrupted(attempt, to_request(request), to_steps(steps), head, deaths)
    except HistoryDamaged as error:
        return UnreadableAttempt(attempt, error.message)


def of_holds(holds: Sequence[Hold], lease_seconds: float) -> dict[str, Any]:
    return {
        "tenants": [hold.tenant for hold in holds],
        "sessions": [hold.session for hold in holds],
        "attempts": [hold.attempt for hold in holds],
        "fences": [hold.fence for hold in holds],
        "lease": lease_seconds,
    }


def held_of(rows: Sequence[Row]) -> dict[AttemptId, Attempt]:
    held = (to_attempt(row) for *row, _ in rows)
    return {attempt.id: attempt for attempt in held}


def _of_steps(steps: Sequence[Step], session: SessionId) -> dict[str, Any]:
    plain = [of_step(step, session) for step in steps]
    return {
        "step_kinds": [step["kind"] for step in plain],
        "step_inputs": [step["input_tokens"] for step in plain],
        "step_outputs": [step["output_tokens"] for step in plain],
        "step_costs": [step["cost"] for step in plain],
        "step_bodies": [step["body"] for step in plain],
        "step_checksums": [step["checksum"] for step in plain],
        "steers": [step.queued for step in steps if step.queued],
    }


def _take(values: Iterator[Any], kind: str) -> Row:
    """The next columns of a row that several tables share."""
    return list(islice(values, COLUMNS[kind].count(",") + 1))


def _attempt(values: Iterator[Any]) -> Attempt | None:
    row = _take(values, "attempt")
    return to_attempt(row) if row[0] is not None else None


def _request(values: Iterator[Any]) -> TurnRequest | None:
    row = _take(values, "request")
    return to_request(row) if row[0] is not None else None
