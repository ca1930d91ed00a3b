"""Claims, on either database: tasks are handed to workers, and workers report under the claim's token.

A claim locks tasks before sessions, against the order of all other transactions. So it waits for neither:
locked rows are skipped, and found by the next claim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import orjson

from lastgood.errors import HistoryDamaged
from lastgood.model.attempts import AttemptStatus, Hold, TurnRequest
from lastgood.model.audit import AuditEntry
from lastgood.model.events import Event
from lastgood.model.ids import AttemptId, TaskId, TenantId
from lastgood.model.tasks import (
    HELD_TASKS,
    Claimed,
    ClaimRequest,
    ClaimState,
    PointerReport,
    Task,
    TaskMessage,
    TaskStatus,
)
from lastgood.model.usage import NO_USE
from lastgood.ports.work import EndedEvents, TakeoverEntry
from lastgood.store.announcements import of_task
from lastgood.store.audit import add_audit
from lastgood.store.queue_rows import of_parking
from lastgood.store.rows import EVENT_LEAP, to_attempt, to_request
from lastgood.store.run_activity import store_messages
from lastgood.store.session_rows import to_session
from lastgood.store.task_ends import put_pointer
from lastgood.store.task_rows import as_text, to_message, to_task
from lastgood.store.usage import uses_of_end
from lastgood.store.work_access import ClaimLost, Statements, WorkTransactions, append_if_held, first

#: How many more tasks are read than a worker wants: others may be claiming the first ones.
SPARE = 64


class SqlClaims(WorkTransactions):
    async def claim_tasks(
        self, request: ClaimRequest, ended: EndedEvents, takeover: TakeoverEntry | None = None
    ) -> tuple[Claimed, ...]:
        wanted = min(len(request.tokens), len(request.attempts))
        parameters = {
            "tenant": request.tenant,
            "worker": request.worker,
            "owner": request.owner,
            "epoch": request.epoch,
            "runtimes": as_text(request.runtimes),
            "ageing": request.ageing_seconds,
            "wanted": wanted,
            "looked_at": wanted + SPARE,
            "lease": request.prepare_seconds,
        }
        # Most polls find nothing, and need no transaction for it.
        if not wanted or not await self._rows("any_claimable", parameters):
            return ()

        async def work(statements: Statements) -> tuple[Claimed, ...]:
            # Claims of an agent with a limit are serialized here, so that each counts what the others have
            # taken.
            await statements.rows("lock_limited_agents", parameters)
            picked = await statements.rows("pick_tasks", parameters)
            names = zip(request.tokens, request.attempts, strict=False)
            claimed = []
            for row, (token, attempt) in zip(picked, names, strict=False):
                which = parameters | {"token": token, "attempt": attempt}
                task = to_task(row)
                made = await _claim(statements, task, which, ended)
                if made is None:
                    continue
                claimed.append(made)
                if takeover is not None and task.status in HELD_TASKS and task.attempt is not None:
                    await add_audit(statements, takeover(made, task.attempt))
            return tuple(claimed)

        return await self._transact(work)

    async def confirm_claim(
        self,
        hold: Hold,
        token: bytes,
        decision: dict[str, Any],
        lease_seconds: float,
        events: Sequence[Event],
        *,
        agent_digest: str = "",
        model: str = "",
        audit: AuditEntry | None = None,
    ) -> bool:
        parameters = {
            "tenant": hold.tenant,
            "attempt": hold.attempt,
            "token": token,
            "decision": as_text(decision),
            "lease": lease_seconds,
            "agent_digest": agent_digest,
            "model": model,
        }

        async def work(statements: Statements) -> bool:
            if not await append_if_held(statements, hold, events):
                return False
            await statements.rows("decide_attempt", parameters)
            if not await statements.rows("confirm_claim", parameters):
                raise ClaimLost
            await add_audit(statements, audit)
            return True

        return await self._unless_lost(work, False)

    async def find_claim(
        self, tenant: TenantId, task: TaskId, token: bytes, owner: str, worker: str | None
    ) -> ClaimState | None:
        parameters = {"tenant": tenant, "task": task, "token": token, "owner": owner, "worker": worker}

        async def work(statements: Statements) -> ClaimState | None:
            claim = await first(statements, "find_claim", parameters)
            if claim is None:
                return None
            attempt_id, is_newest, report, *row = claim
            found = to_task(row)
            made = await first(statements, "get_attempt", {"tenant": tenant, "attempt": attempt_id})
            attempt = to_attempt(made) if made else None
            is_current = bool(is_newest) and found.status in HELD_TASKS and attempt is not None
            return ClaimState(
                found,
                is_current,
                attempt.hold if is_current and attempt else None,
                attempt,
                orjson.loads(report) if report is not None else None,
            )

        return await self._look(work)

    async def find_held_task(self, token: bytes) -> Task | None:
        rows = await self._rows("find_held_task", {"token": token})
        return to_task(rows[0]) if rows else None

    async def start_task(self, state: ClaimState, token: bytes) -> bool:
        return bool(await self._write("start_task", _of_claim(state, token)))

    async def report_pointer(self, state: ClaimState, token: bytes, report: PointerReport) -> bool:
        if state.attempt is None:
            return False
        parameters = _of_claim(state, token) | {"attempt": state.attempt.id, "fence": state.attempt.fence}

        async def work(statements: Statements) -> bool:
            await statements.rows("lock_session", parameters)
            if not await statements.rows("may_point", parameters):
                return False
            await put_pointer(statements, parameters, report)
            return True

        return await self._transact(work)

    async def append_messages(
        self, state: ClaimState, token: bytes, messages: Sequence[TaskMessage], events: Sequence[Event | None]
    ) -> int | None:
        hold = state.hold
        if hold is None:
            return None
        parameters = _of_claim(state, token) | {"attempt": hold.attempt}
        pairs = sorted(zip(messages, events, strict=True), key=lambda pair: pair[0].seq)

        async def work(statements: Statements) -> int | None:
            await statements.rows("lock_session", parameters)
            last = int((await statements.rows("last_message", parameters))[0][0])
            new = []
            for message, event in pairs:
                if message.seq > last:
                    last = message.seq
                    new.append((message, event))
            shown = [event for _, event in new if event is not None]
            if not await append_if_held(statements, hold, shown):
                return None
            if not await statements.rows("is_current", parameters):
                raise ClaimLost
            await store_messages(statements, parameters, [message for message, _ in new])
            return last

        return await self._unless_lost(work, None, durable=False)

    async def read_messages(
        self, tenant: TenantId, attempt: AttemptId, *, after: int = 0, limit: int = 500
    ) -> tuple[TaskMessage, ...]:
        parameters = {"tenant": tenant, "attempt": attempt, "after": after, "limit": limit}
        return tuple(map(to_message, await self._rows("read_messages", parameters)))


def _of_claim(state: ClaimState, token: bytes) -> dict[str, Any]:
    task = state.task
    return {"tenant": task.tenant, "task": task.id, "session": task.session, "token": token}


async def _claim(
    statements: Statements, task: Task, parameters: dict[str, Any], ended: EndedEvents
) -> Claimed | None:
    """One task that this transaction has locked. None: its session is held at the moment, or its request
    cannot be read."""
    which = {
        **parameters,
        "task": task.id,
        "session": task.session,
        "turn": task.turn,
        "expired": task.attempt if task.status in HELD_TASKS else None,
    }
    if not await statements.rows("lock_session_for_claim", which):
        return None
    await _end_expired(statements, which, ended)
    request = await _request(statements, which)
    if request is None:
        return None
    session = to_session((await statements.rows("hold_for_claim", which | {"forever": math.inf}))[0])
    head = session.head.turn if session.head else None
    attempt = {
        "fence": session.fence,
        "head": head,
        "base": request.edit.after if request.edit else head,
        "agent_key": task.agent_key,
        "model": request.model or session.model or "",
    }
    made = to_attempt((await statements.rows("insert_claim_attempt", which | attempt))[0])
    await statements.rows("insert_claim", which)
    row = (await statements.rows("claim_task", which))[0]
    return Claimed(to_task(row), made.hold, made, request, session)


async def _request(statements: Statements, task: dict[str, Any]) -> TurnRequest | None:
    """None: it is damaged. Its task ends here: no worker could ever run it, and the tasks behind it would
    wait forever."""
    row = await first(statements, "read_request", task)
    try:
        if row is not None:
            return to_request(row)
        problem = "The stored input of this task is missing; send it again as a new task"
    except HistoryDamaged as error:
        problem = error.message
    broken = {"code": HistoryDamaged.code, "message": problem}
    await statements.rows("fail_unreadable_task", task | broken)
    announcement = of_task(TaskStatus.FAILED, (broken["code"], problem))
    await statements.rows("announce_task", task | announcement)
    return None


async def _end_expired(statements: Statements, task: dict[str, Any], ended: EndedEvents) -> None:
    """Ends the attempt of a claim whose lease is over, and frees its session. Its watchers learn it by
    events of this transaction: a server that dies before the new claim is confirmed owes them nothing."""
    if task["expired"] is None:
        return
    expired = {"attempt": task["expired"], "status": AttemptStatus.INTERRUPTED.value}
    events = ended(task["turn"], task["expired"])
    numbers = {"numbers": EVENT_LEAP + len(events)}
    for (last,) in await statements.rows("free_expired_session", task | numbers):
        await statements.insert_events(task["session"], last, events)
    await statements.rows("end_expired_attempt", task | expired)
    for use in uses_of_end(AttemptStatus.INTERRUPTED, NO_USE):
        await statements.rows("count_use", {"attempt": task["expired"], **use})
    await statements.rows("withdraw_questions", task | expired)
    await statements.rows("give_back_queued", task | expired | of_parking(None))
