"""Every call about runtimes and tasks carries the tenant; a foreign id is like an unknown one (I34, I35)."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lastgood.model.attempts import AttemptStatus, Hold
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.model.runtimes import AgentBinding, Heartbeat, HeartbeatResult, LiveClaim, OnQueued
from lastgood.model.sessions import Session
from lastgood.model.tasks import ClaimState, Task, TaskConflict, TaskEnd, TaskFilter, TaskMessage, TaskStatus
from lastgood.ports import Store
from lastgood.ports.work import RuntimeStore, TaskStore
from tests.contract import builders, work_builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump
from tests.contract.work_builders import OWNER, RUNTIME, WORKER, Claim

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Known:
    """What somebody may know: ids and even a claim token of another tenant."""

    tenant: TenantId
    runtime: str
    session: Session
    queued: Task
    claim: Claim
    state: ClaimState

    @property
    def hold(self) -> Hold:
        return self.claim.hold

    @property
    def foreign(self) -> "Known":
        return self._of(
            tenant=STRANGER,
            session=replace(self.session, tenant=STRANGER),
            queued=replace(self.queued, tenant=STRANGER),
            task=replace(self.state.task, tenant=STRANGER),
            hold=replace(self.hold, tenant=STRANGER),
        )

    @property
    def unknown(self) -> "Known":
        hold = Hold(self.tenant, SessionId("unknown"), AttemptId("unknown"), 1)
        task = replace(
            self.state.task, id=TaskId("unknown"), session=SessionId("unknown"), turn=TurnId("unknown")
        )
        changed = self._of(
            tenant=self.tenant,
            session=replace(self.session, id=SessionId("unknown")),
            queued=replace(task, status=TaskStatus.QUEUED),
            task=task,
            hold=hold,
        )
        return replace(changed, runtime="unknown")

    def _of(self, *, tenant: TenantId, session: Session, queued: Task, task: Task, hold: Hold) -> "Known":
        assert self.state.attempt is not None
        attempt = replace(
            self.state.attempt, tenant=tenant, id=hold.attempt, session=hold.session, fence=hold.fence
        )
        claimed = replace(self.claim.claimed, task=task, hold=hold, attempt=attempt)
        state = replace(self.state, task=task, hold=hold, attempt=attempt)
        return Known(tenant, self.runtime, session, queued, replace(self.claim, claimed=claimed), state)


Call = Callable[[Store, Known], Awaitable[Any]]


def heartbeat(it: Known) -> Heartbeat:
    return Heartbeat(
        it.tenant, WORKER, 1, (it.runtime,), (LiveClaim(it.claim.task, it.claim.token),), owner=OWNER
    )


CALLS: dict[str, Call] = {
    "get_runtime": lambda store, it: store.get_runtime(it.tenant, it.runtime),
    "share_runtime": lambda store, it: store.share_runtime(it.tenant, it.runtime, ["x"]),
    "remove_runtime": lambda store, it: store.remove_runtime(it.tenant, it.runtime),
    "pin_runtime": lambda store, it: store.pin_runtime(it.tenant, it.session.id, "x", OnQueued.MOVE, OWNER),
    "get_task": lambda store, it: store.get_task(it.tenant, it.queued.id),
    "task_of_turn": lambda store, it: store.task_of_turn(it.tenant, it.queued.turn),
    "open_tasks": lambda store, it: store.open_tasks(it.tenant, it.session.id),
    "find_claim": lambda store, it: store.find_claim(it.tenant, it.claim.task, it.claim.token, OWNER, WORKER),
    "confirm_claim": lambda store, it: store.confirm_claim(
        it.hold, it.claim.token, {"x": 1}, 90.0, builders.events("x"), agent_digest="x"
    ),
    "start_task": lambda store, it: store.start_task(it.state, it.claim.token),
    "report_pointer": lambda store, it: store.report_pointer(
        it.state, it.claim.token, work_builders.pointer(native_session="x", retires=(("native", "x"),))
    ),
    "append_messages": lambda store, it: store.append_messages(
        it.state, it.claim.token, [TaskMessage(9, {})], builders.events("x")
    ),
    "read_messages": lambda store, it: store.read_messages(it.tenant, it.hold.attempt),
    "end_queued_task": lambda store, it: store.end_queued_task(
        it.tenant, TaskEnd(it.queued.id, TaskStatus.CANCELLED, holds_others=True), builders.events("x")
    ),
    "release_task": lambda store, it: store.release_task(it.tenant, it.queued.id),
    "release_tasks": lambda store, it: store.release_tasks(it.tenant, it.session.id),
    "ask_question": lambda store, it: store.ask_question(
        it.state, it.claim.token, work_builders.question(it.claim, "new"), builders.events("x")
    ),
    "answer_question": lambda store, it: store.answer_question(it.tenant, it.claim.task, "q", {}, "x"),
    "list_questions": lambda store, it: store.list_questions(it.tenant, it.session.id),
    "get_question": lambda store, it: store.get_question(it.tenant, it.claim.task, "q"),
    "list_pointers": lambda store, it: store.list_pointers(it.tenant, it.session.id),
    "retire_native_session": lambda store, it: store.retire_native_session(
        it.tenant, it.session.id, RUNTIME, "native", "x"
    ),
    "put_snapshot": lambda store, it: store.put_snapshot(
        it.state, it.claim.token, work_builders.snapshot(it.claim, b"x")
    ),
    "get_snapshot": lambda store, it: store.get_snapshot(it.tenant, it.hold.attempt),
    "summary_of_snapshot": lambda store, it: store.summary_of_snapshot(it.tenant, it.hold.attempt),
    "commit_if_head": lambda store, it: it.claim.complete(store),
    "finish_if_held": lambda store, it: it.claim.fail(store),
    "finish_if_held by others": lambda store, it: it.claim.cancel(store),
    "finish_if_held of another task": lambda store, it: store.finish_if_held(
        it.hold, AttemptStatus.FAILED, None, [], task=TaskEnd(it.claim.task, TaskStatus.FAILED)
    ),
}
#: Their own tests below, housekeeping, or calls whose answer for a stranger is his own.
WITHOUT = {
    "register", "beat", "deregister", "list_runtimes", "bind_agent", "unbind_agent", "get_binding",
    "create_enrollment", "use_enrollment", "session_of_scope", "find_scope", "enqueue_task",
    "look_up_task", "list_tasks", "claim_tasks", "keep_late_output", "acknowledge_cancel", "overdue_tasks",
    "expire_questions", "ended_ephemeral", "newest_snapshot", "get_worker", "find_held_task",
}  # fmt: skip
EMPTY = {"None", "False", "()", "lost", "0"}


def test_I35_no_call_is_missing_here() -> None:
    methods = {name for part in (RuntimeStore, TaskStore) for name in vars(part) if not name.startswith("_")}
    of_attempts = {"commit_if_head", "finish_if_held"}
    assert ({name.split()[0] for name in CALLS} - of_attempts) | WITHOUT == methods


async def known(store: Store) -> Known:
    await work_builders.register(store, RUNTIME, "x")
    session = await builders.session(store)
    await work_builders.task(store, session)
    claim = await work_builders.claim(store)
    await work_builders.report_everything(store, claim)
    queued = await work_builders.task(store, session)
    # A cancel of another task of the session has held the queued one.
    dropped = await work_builders.task(store, session)
    end = TaskEnd(dropped.id, TaskStatus.CANCELLED, holds_others=True)
    assert await store.end_queued_task(TENANT, end, [])
    return Known(
        TENANT, RUNTIME, await builders.again(store, session), queued, claim, await claim.state(store)
    )


@pytest.mark.parametrize("name", CALLS)
async def test_I35_a_foreign_id_answers_like_an_unknown_one_and_changes_nothing(
    backend: Backend, name: str
) -> None:
    store, call = backend.store, CALLS[name]
    it = await known(store)
    before = await dump(backend)
    foreign = await call(store, it.foreign)
    assert foreign == await call(store, it.unknown)
    assert str(foreign) in EMPTY
    assert await dump(backend) == before


@pytest.mark.parametrize("name", CALLS)
async def test_the_owner_does_get_an_answer(store: Store, name: str) -> None:
    """Otherwise the test above would prove nothing."""
    assert str(await CALLS[name](store, await known(store))) not in EMPTY


async def test_I35_a_foreign_session_takes_no_task(backend: Backend) -> None:
    store = backend.store
    it = await known(store)
    before = await dump(backend)
    for session in (it.foreign.session, it.unknown.session):
        assert await work_builders.enqueue(store, session) == TaskConflict(None)
        assert await store.look_up_task(builders.ask(session)) == TaskConflict(None)
    assert await dump(backend) == before


async def test_I34_a_worker_of_another_tenant_renews_and_claims_nothing(backend: Backend) -> None:
    store = backend.store
    it = await known(store)
    await store.release_task(TENANT, it.queued.id)
    await it.claim.complete(store)
    before = await dump(backend)
    unknown = HeartbeatResult(lost=(it.claim.task,), unknown_runtimes=(RUNTIME,))
    assert await store.beat(heartbeat(it.foreign), 90.0) == unknown
    assert await work_builders.claim_some(store, tenant=STRANGER) == []
    assert not await store.deregister(STRANGER, WORKER, OWNER, 1)
    assert await dump(backend) == before
    assert len(await work_builders.claim_some(store)) == 1, "its own worker does claim it"


async def test_I35_other_tenants_list_and_bind_their_own(store: Store) -> None:
    await known(store)
    await store.bind_agent(AgentBinding(TENANT, "agent", RUNTIME), OnQueued.KEEP)
    assert await store.list_runtimes(STRANGER) == ()
    assert await store.get_worker(STRANGER, WORKER) is None
    assert await store.get_binding(STRANGER, "agent") is None
    assert not await store.unbind_agent(STRANGER, "agent", OWNER)
    assert (await store.list_tasks(STRANGER, TaskFilter(), limit=9)).tasks == ()
