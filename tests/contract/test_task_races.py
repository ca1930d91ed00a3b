"""What only several connections can show: calls on one session at the same time wait for each other or lose,
and none is undone by a deadlock (I9, I15, I31)."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lastgood.model.attempts import Committed
from lastgood.model.runtimes import AgentBinding, Heartbeat, LiveClaim, OnQueued
from lastgood.model.sessions import Session
from lastgood.model.stored_rows import StoredRow, StoredTable
from lastgood.model.tasks import TaskEnd, TaskMessage, TaskStatus
from lastgood.ports import Store
from tests.contract import builders, work_builders
from tests.contract.builders import TENANT
from tests.contract.work_builders import OWNER, RUNTIME, WORKER, Claim
from tests.turn_chains import broken_link

pytestmark = pytest.mark.anyio


class Crowd:
    """Many callers, each doing something at random to a few sessions."""

    def __init__(self, store: Store, sessions: list[Session], seed: int) -> None:
        self.store = store
        self.sessions = sessions
        self.random = random.Random(seed)
        self.claims: list[Claim] = []
        self.done = 0

    async def call(self) -> None:
        actions: list[Callable[[Session], Awaitable[Any]]] = [
            self.enqueue, self.enqueue, self.claim, self.claim, self.complete, self.complete, self.fail,
            self.cancel, self.beat,
            self.report, self.answer, self.end_queued, self.release, self.bind, self.pin, self.sweep,
        ]  # fmt: skip
        for _ in range(40):
            await self.random.choice(actions)(self.random.choice(self.sessions))

    async def enqueue(self, session: Session) -> None:
        await work_builders.enqueue(self.store, session, max_wait_seconds=60.0)

    async def claim(self, session: Session) -> None:
        # Some leases are over at once.
        seconds = self.random.choice([-1.0, 60.0])
        for claim in await work_builders.claim_some(self.store, wanted=3, prepare_seconds=seconds):
            self.claims.append(claim)

    def one(self) -> Claim | None:
        """Mostly one that is still current."""
        return self.random.choice(self.claims[-4:]) if self.claims else None

    async def complete(self, session: Session) -> None:
        if claim := self.one():
            committed = await claim.complete(self.store, pointer=work_builders.pointer())
            self.done += committed is Committed.YES

    async def fail(self, session: Session) -> None:
        if claim := self.one():
            status = self.random.choice([TaskStatus.QUEUED, TaskStatus.FAILED])
            await claim.fail(self.store, status, pointer=work_builders.pointer())

    async def cancel(self, session: Session) -> None:
        if claim := self.one():
            await claim.cancel(self.store, holds_others=True)

    async def beat(self, session: Session) -> None:
        live = tuple(LiveClaim(each.task, each.token) for each in self.claims[-5:])
        await self.store.beat(Heartbeat(TENANT, WORKER, 1, (RUNTIME,), live, owner=OWNER), 60.0)

    async def report(self, session: Session) -> None:
        if claim := self.one():
            state = await claim.state(self.store)
            await work_builders.report_everything(self.store, claim, state)
            await self.store.append_messages(state, claim.token, [TaskMessage(2, {})], [None])

    async def answer(self, session: Session) -> None:
        if claim := self.one():
            await self.store.answer_question(TENANT, claim.task, "q", {}, "ann")

    async def end_queued(self, session: Session) -> None:
        for task in await self.store.open_tasks(TENANT, session.id):
            end = TaskEnd(task.id, TaskStatus.CANCELLED, holds_others=True)
            await self.store.end_queued_task(TENANT, end, builders.events("end"))
            return

    async def release(self, session: Session) -> None:
        await self.store.release_tasks(TENANT, session.id)

    async def bind(self, session: Session) -> None:
        binding = AgentBinding(
            TENANT, session.agent_key, RUNTIME, max_running=self.random.choice([None, 4]), bound_by=OWNER
        )
        await self.store.bind_agent(binding, OnQueued.MOVE)

    async def pin(self, session: Session) -> None:
        await self.store.pin_runtime(TENANT, session.id, RUNTIME, OnQueued.MOVE, OWNER)

    async def sweep(self, session: Session) -> None:
        await self.store.expire_questions(9)
        await self.store.overdue_tasks(9)


async def problems(store: Store) -> list[str]:
    async with store.inspect() as inspection:
        return [
            f"{table}: {row.what}: {row.problem}"
            for table in StoredTable
            async for row in inspection.rows(table)
            if isinstance(row, StoredRow) and row.problem
        ]


@pytest.mark.parametrize("seed", range(3))
async def test_I31_a_crowd_of_workers_and_people_leaves_every_session_whole(store: Store, seed: int) -> None:
    await work_builders.register(store)
    sessions = [await builders.session(store, agent_key=f"agent{n % 2}") for n in range(5)]
    crowd = Crowd(store, sessions, seed)
    await asyncio.gather(*(crowd.call() for _ in range(8)))
    assert crowd.done > 0, "something was committed"
    assert await problems(store) == []
    turns = 0
    for session in sessions:
        now = await builders.again(store, session)
        chain = await store.read_turns(TENANT, now.head.turn) if now.head else ()
        assert broken_link(chain) is None
        turns += len(chain)
        held = [
            task
            for task in await store.open_tasks(TENANT, session.id)
            if task.status not in ("queued", "deferred")
        ]
        assert [task.attempt for task in held] == ([now.attempt] if now.attempt else [])
    assert turns == crowd.done


async def test_I15_deletes_between_claims_and_reports_leave_nothing(store: Store) -> None:
    await work_builders.register(store)

    async def life(number: int) -> None:
        session = await builders.session(store)
        for _ in range(3):
            await work_builders.task(store, session)
        claims = await work_builders.claim_some(store, wanted=2)
        await asyncio.gather(
            store.delete_session(TENANT, session.id),
            work_builders.enqueue(store, session),
            work_builders.claim_some(store, wanted=2),
            *(claim.complete(store) for claim in claims),
            *(claim.cancel(store) for claim in claims),
        )
        assert await store.get_session(TENANT, session.id) is None
        assert await store.open_tasks(TENANT, session.id) == ()
        assert await store.list_attempts(TENANT, session.id) == ()

    await asyncio.gather(*map(life, range(12)))
    assert await problems(store) == []
