"""The queue of a session: steers for the running turn, follow-ups for after it.

Both are stored before they are acknowledged, and leave the queue in the transaction that makes them part of a
turn. The store records which attempt has which of them; here follow-ups are started, one after the other,
whenever their session is free. Any process may do that at any time: an entry is taken as part of begin, and
only one begin can win.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from lastgood.core.input_checks import check_input, check_text
from lastgood.core.recovery import GiveUp, Leave, TryAgain, is_due, recover
from lastgood.errors import (
    AgentInvalid,
    Conflict,
    IdempotencyMismatch,
    LastgoodError,
    NothingPending,
    QueueFull,
    SessionBusy,
    SessionNotFound,
    StoreError,
    TooManyRequests,
)
from lastgood.flows.dependencies import Dependencies
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.task_queue import FIRST_TASK, QueuedTask, TaskQueue
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.turns import Turns, ask_of_queued
from lastgood.model.attempts import Attempt, AttemptStatus, Interrupted, TurnRequest
from lastgood.model.ids import SessionId, TenantId, TurnId
from lastgood.model.messages import Message, Part, Role
from lastgood.model.queue import NewQueued, NotQueued, Queued, QueueKind
from lastgood.model.sessions import Session, TurnKind

log = logging.getLogger(__name__)

#: Limit of waiting entries per session.
CAPACITY = {QueueKind.STEER: 5, QueueKind.FOLLOWUP: 20}
_PAGE = 100
_DAMAGED = (
    "Stored input does not match its checksum and was not sent to a model; delete the entry, then send the "
    "message again"
)

WhileRuns = Callable[[Queued], AbstractContextManager[None]]


class Queue:
    def __init__(self, deps: Dependencies, live: RunningAttempts, turns: Turns, tasks: TaskQueue) -> None:
        self._deps = deps
        self._live = live
        self._turns = turns
        self._tasks = tasks
        self._draining: dict[SessionId, asyncio.Task[None]] = {}
        self._asked: set[SessionId] = set()  # since its task last checked
        self._while_runs: WhileRuns = lambda _: nullcontext()

    def admit_by(self, while_runs: WhileRuns) -> None:
        """Entered before a follow-up begins and left when it has ended. TooManyRequests: it has to wait."""
        self._while_runs = while_runs

    def new_turn(self) -> TurnId:
        """Returns the id of the turn that an entry will become."""
        return self._deps.ids.turn()

    async def put(self, new: NewQueued, owner: str | None = None) -> tuple[Queued | QueuedTask, bool]:
        """Returns the queue entry, and whether it was queued before under its key. `owner`: the user of the
        token."""
        check_input(new.messages, TurnKind.RUN, self._deps.limits.input_bytes)
        for what, text in (("model", new.model), ("agent", new.agent_key), ("user", new.user)):
            check_text(text or "", f"the {what}")
        session = await self._deps.store.get_session(new.tenant, new.session)
        if session is None:
            raise SessionNotFound()
        await self._deps.quotas.check(new.tenant, session.created_by)
        if new.kind is QueueKind.STEER:
            await self._check_steerable(session)
        else:
            ask = replace(ask_of_queued(new), owner=owner)
            if (queued := await self._tasks.put(ask, new.turn, session)) is not None:
                return queued
        match await self._deps.store.enqueue(new, most=CAPACITY[new.kind]):
            case NotQueued.GONE:
                raise SessionNotFound()
            case NotQueued.FULL:
                raise QueueFull()
            case NotQueued.NOTHING_RUNS:
                raise NothingPending("No turn is running in this session, so there is nothing to steer")
            case NotQueued.KEY_USED:
                raise IdempotencyMismatch()
            case Queued() as item if item.turn == new.turn:
                self.drain(new.tenant, new.session)
                return item, False
            case Queued() as item if item.fingerprint == new.fingerprint and item.session == new.session:
                return item, True
            case _:
                raise IdempotencyMismatch()

    async def _check_steerable(self, session: Session) -> None:
        """Conflict: the CLI of the runtime does not accept messages while a turn runs."""
        store, tenant = self._deps.store, session.tenant
        attempt = session.attempt and await store.get_attempt(tenant, session.attempt)
        task = await store.get_task(tenant, attempt.task) if attempt and attempt.task else None
        if task is None:
            return
        runtime = await store.get_runtime(tenant, task.runtime)
        if runtime is None or not runtime.steerable:
            name = runtime.name if runtime else task.runtime
            raise Conflict(
                f"Runtime {name} does not accept messages while a turn runs; "
                "send a follow-up, which runs after it"
            )

    async def read(self, tenant: TenantId, session: SessionId) -> tuple[Queued | QueuedTask, ...]:
        found = await self._deps.store.get_session(tenant, session)
        if found is None:
            raise SessionNotFound()
        queue = await self._deps.store.read_queue(tenant, session)
        return queue if found.runtime_id is None else (*queue, *await self._tasks.read(tenant, session))

    async def drop(self, tenant: TenantId, session: SessionId, number: int) -> None:
        is_task = number >= FIRST_TASK
        drop = self._tasks.drop if is_task else self._deps.store.drop_queued
        if not await drop(tenant, session, number):
            await self.read(tenant, session)
            raise Conflict("Queue entry not found, or a turn has taken it; read the queue again")

    async def retry(self, tenant: TenantId, session: SessionId, number: int) -> None:
        """Retries a parked entry."""
        is_task = number >= FIRST_TASK
        retry = self._tasks.retry if is_task else self._deps.store.unpark_queued
        if not await retry(tenant, session, number):
            await self.read(tenant, session)
            raise Conflict("Parked queue entry not found; read the queue again")
        self.drain(tenant, session)

    # -- running follow-ups ----------------------------------------------------------

    async def sweep(self) -> None:
        """Finds entries that a dead process left."""
        for tenant, session in await self._deps.store.waiting_queues(_PAGE):
            self.drain(tenant, session)

    def drain(self, tenant: TenantId, session: SessionId) -> None:
        """Runs waiting entries as soon as the session is free. One task per session is enough."""
        running = self._draining.get(session)
        self._asked.add(session)
        if self._live.is_closing or (running is not None and not running.done()):
            return
        task = self._live.spawn(self._drain(tenant, session))
        self._draining[session] = task
        task.add_done_callback(lambda done: self._forget(session, done))

    def _forget(self, session: SessionId, task: asyncio.Task[None]) -> None:
        if self._draining.get(session) is task:
            del self._draining[session]
            self._asked.discard(session)
        if not task.cancelled() and task.exception() is not None:
            log.error("queue of session %s is retried later", session, exc_info=task.exception())

    async def _drain(self, tenant: TenantId, session: SessionId) -> None:
        store = self._deps.store
        while not self._live.is_closing:
            item: Queued | None = None
            try:
                self._asked.discard(session)
                found = await store.get_session(tenant, session)
                queue = await store.read_queue(tenant, session)
                item = _next(queue)
                if found is None or (item is None and not _has_steers(queue)):
                    if session in self._asked:
                        continue  # an entry was added in the meantime
                    return
                if found.attempt is not None:
                    attempt = await store.get_attempt(tenant, found.attempt)
                    if attempt is None or attempt.status is AttemptStatus.WAITING:
                        return  # it may wait for long; the sweep checks again
                    # Nothing up to here is its end: it has not ended yet, or is found to have.
                    after = found.last_event_seq
                    await self._until_ended(
                        self._turns.handle(tenant, session, attempt.turn, attempt.id, after)
                    )
                elif item is None:
                    return  # a turn began between the two reads; it takes care of its steers
                elif item.is_damaged:
                    await store.park_queued(tenant, session, item.number, _DAMAGED)
                else:
                    with self._while_runs(item):
                        submitted = await self._run(item)
                        if submitted is None:
                            return  # not yet; the sweep checks again
                        if submitted.task_id is None:  # else it is in the other queue by now
                            await submitted.outcome()
            except SessionNotFound:
                return  # it was deleted while its turn was waited for
            except (SessionBusy, TooManyRequests):
                await asyncio.sleep(self._deps.limits.poll_seconds)
            except StoreError as error:
                log.warning("queue of session %s is retried later: %s", session, error)
                return
            except LastgoodError as error:
                # It cannot even begin: its agent is gone, or nobody serves its model.
                if item is None:
                    log.error("queue of session %s is retried later: %s", session, error)
                    return
                await store.park_queued(tenant, session, item.number, _parking_reason(error))

    async def _until_ended(self, submitted: TurnHandle) -> None:
        """Or until this process has to end: a turn that another one runs must not keep it here."""
        waiting = asyncio.ensure_future(submitted.outcome())
        try:
            while not waiting.done() and not self._live.is_closing:
                await asyncio.wait({waiting}, timeout=self._deps.limits.poll_seconds)
            if waiting.done():
                waiting.result()
        finally:
            waiting.cancel()
            await asyncio.wait({waiting})

    async def _run(self, item: Queued) -> TurnHandle | None:
        """None: it was tried a moment ago, and too often before that."""
        request = await self._deps.store.read_request(item.tenant, item.turn)
        if request is None:
            return await self._turns.run_queued(item)
        if (task := await self._deps.store.task_of_turn(item.tenant, item.turn)) is not None:
            # It became a task, and the process died before it removed the entry here.
            await self._deps.store.drop_queued(item.tenant, item.session, item.number)
            return self._turns.of_task(task)
        last = await self._deps.store.newest_attempt(item.tenant, item.turn)
        assert last is not None, "a stored request was tried at least once"
        if not is_due(last, self._deps.clock.now()):
            return None
        decided = await self._after(item, request, last)
        return await self._turns.try_again(request, last, decided, takes=item.number)

    async def _after(self, item: Queued, request: TurnRequest, last: Attempt) -> TryAgain:
        """Whether a new attempt continues after the finished steps of the last one."""
        if last.status is AttemptStatus.CANCELLED:
            return TryAgain(False, "its last attempt was cancelled, so it restarts from its input")
        session = await self._deps.store.get_session(item.tenant, item.session)
        if session is None:
            raise SessionNotFound()
        steps = await self._deps.store.read_steps(item.tenant, last.id)
        agent, _ = await self._turns.resolve(request.agent_key or session.agent_key)
        model = request.model or session.model or agent.model
        head = session.head.turn if session.head else None
        match recover(
            Interrupted(last, request, steps, head), digest=agent.digest, model=model, is_queued=True
        ):
            case TryAgain() as decided:
                return decided
            case Leave(reason):
                return TryAgain(False, reason)
            case GiveUp(error):
                raise error


def _parking_reason(error: LastgoodError) -> str:
    """Returns what clients may read. The path and content of an agent file are for the operator only."""
    if isinstance(error, AgentInvalid):
        log.warning("cannot start a follow-up: %s", error)
        return "The agent file has errors; see the server log"
    return error.message


def _next(queue: Sequence[Queued]) -> Queued | None:
    waiting = (item for item in queue if item.kind is QueueKind.FOLLOWUP)
    return next((item for item in waiting if item.attempt is None and item.parked is None), None)


def _has_steers(queue: Sequence[Queued]) -> bool:
    """A steer that its turn did not receive, or whose turn failed, becomes a follow-up when that has
    ended."""
    return any(item.kind is QueueKind.STEER for item in queue)


def as_one(messages: Sequence[Message]) -> Message:
    """A steer is one message: joins several into one."""
    if len(messages) == 1:
        return messages[0]
    parts: list[Part] = []
    for message in messages:
        parts.extend(message.parts or (message.content,))
    text = "\n\n".join(message.content for message in messages if message.content)
    has_more = any(message.parts for message in messages)
    return Message(Role.USER, text, parts=tuple(parts) if has_more else ())
