"""Every call carries the tenant, and a foreign id answers exactly like an unknown one (I35)."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lastgood.model.agents import Permissions
from lastgood.model.attempts import AttemptStatus, BeginConflict, Commit, CommitResult, Committed, Hold
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.queue import QueueKind
from lastgood.model.rules import RuleLayer
from lastgood.model.sessions import Session, TitleBy, Turn
from lastgood.model.tokens import Scope
from lastgood.ports import Store
from lastgood.ports.attempts import AttemptStore, EventStore, QueueStore
from lastgood.ports.sessions import SessionStore, TurnStore
from tests.contract import builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Known:
    """What somebody may know of a session: its ids. They are not credentials (I36)."""

    tenant: TenantId
    session: Session
    turn: Turn
    hold: Hold
    running_turn: TurnId
    waiting_turn: TurnId
    queued: int
    parked: int

    @property
    def foreign(self) -> "Known":
        return replace(
            self,
            tenant=STRANGER,
            session=replace(self.session, tenant=STRANGER),
            hold=replace(self.hold, tenant=STRANGER),
        )

    @property
    def unknown(self) -> "Known":
        return Known(
            self.tenant,
            replace(self.session, id=SessionId("unknown"), conversation="unknown"),
            replace(self.turn, id=TurnId("unknown")),
            Hold(self.tenant, SessionId("unknown"), AttemptId("unknown"), 1),
            TurnId("unknown"),
            TurnId("unknown"),
            0,
            0,
        )


Call = Callable[[Store, Known], Awaitable[Any]]

#: The number of the batch that the running attempt stored last.
BATCH = 1


async def collected(items: AsyncGenerator[Any, None]) -> tuple[Any, ...]:
    return tuple([item async for item in items])


CALLS: dict[str, Call] = {
    "get_session": lambda store, it: store.get_session(it.tenant, it.session.id),
    "find_conversation": lambda store, it: store.find_conversation(it.tenant, it.session.conversation or ""),
    "locate_session": lambda store, it: store.locate_session(it.tenant, it.session.id, None),
    "locate_conversation": lambda store, it: store.locate_conversation(
        it.tenant, it.session.conversation or "", None
    ),
    "set_title": lambda store, it: store.set_title(
        it.tenant, it.session.id, "x", TitleBy.PERSON, builders.events("x")
    ),
    "set_field model": lambda store, it: store.set_field(it.tenant, it.session.id, "model", "x"),
    "set_field starred": lambda store, it: store.set_field(it.tenant, it.session.id, "starred", True),
    "set_field metadata": lambda store, it: store.set_field(it.tenant, it.session.id, "metadata", {"x": 1}),
    "set_field agent_key": lambda store, it: store.set_field(it.tenant, it.session.id, "agent_key", "x"),
    "set_rules_if_unchanged": lambda store, it: store.set_rules_if_unchanged(
        it.tenant, it.session.id, (), (RuleLayer(Scope.ADMIN, "t", Permissions(deny=("x",))),)
    ),
    "fork_session": lambda store, it: store.fork_session(
        it.session, it.turn, builders.new_session(it.tenant)
    ),
    "fork_session at nothing": lambda store, it: store.fork_session(
        it.session, None, builders.new_session(it.tenant)
    ),
    "count_forks": lambda store, it: store.count_forks(it.tenant, it.session.id),
    "delete_session": lambda store, it: store.delete_session(it.tenant, it.session.id),
    "read_turns": lambda store, it: store.read_turns(it.tenant, it.turn.id),
    "stream_turns": lambda store, it: collected(store.stream_turns(it.tenant, it.turn.id)),
    "find_turn": lambda store, it: store.find_turn(it.tenant, it.turn.id),
    "turn_at": lambda store, it: store.turn_at(it.tenant, it.turn.id, 1),
    "list_branches": lambda store, it: store.list_branches(it.tenant, it.session.id, limit=9),
    "count_branches": lambda store, it: store.count_branches(it.tenant, it.session.id),
    "look_up": lambda store, it: store.look_up(builders.ask(it.session, key="k")),
    "begin_if_free": lambda store, it: store.begin_if_free(
        builders.begin(builders.ask(it.session, key="k")), []
    ),
    "begin_if_free again": lambda store, it: store.begin_if_free(
        builders.begin(builders.ask(it.session), turn=it.running_turn, again=True), []
    ),
    "journal_if_held": lambda store, it: store.journal_if_held(
        it.hold, [builders.answer("x")], builders.events("x")
    ),
    "is_stored": lambda store, it: store.is_stored(it.hold, BATCH),
    "commit_if_head": lambda store, it: store.commit_if_head(
        it.hold, Commit(replace(it.turn, id=TurnId("new"), seq=2, parent=it.turn.id), it.turn.id, "x"), []
    ),
    "finish_if_held": lambda store, it: store.finish_if_held(
        it.hold, AttemptStatus.FAILED, None, builders.events("x")
    ),
    "wait_if_held": lambda store, it: store.wait_if_held(it.hold, {}, 60, builders.events("x")),
    "resume_if_waiting": lambda store, it: store.resume_if_waiting(it.hold, "node", 60),
    "set_orphaned": lambda store, it: store.set_orphaned(it.hold, True),
    "ask_cancel": lambda store, it: store.ask_cancel(it.hold),
    "renew_leases": lambda store, it: store.renew_leases([it.hold], 600),
    "get_attempt": lambda store, it: store.get_attempt(it.tenant, it.hold.attempt),
    "newest_attempt": lambda store, it: store.newest_attempt(it.tenant, it.turn.id),
    "list_attempts": lambda store, it: store.list_attempts(it.tenant, it.session.id),
    "close_requests": lambda store, it: store.close_requests(
        it.tenant, it.session.id, fingerprint="", caller=""
    ),
    "read_request": lambda store, it: store.read_request(it.tenant, it.running_turn),
    "read_steps": lambda store, it: store.read_steps(it.tenant, it.hold.attempt),
    "append_events_if_held": lambda store, it: store.append_events_if_held(it.hold, builders.events("x")),
    "enqueue": lambda store, it: store.enqueue(builders.said(it.session), most=9),
    "enqueue steer": lambda store, it: store.enqueue(builders.said(it.session, QueueKind.STEER), most=9),
    "read_queue": lambda store, it: store.read_queue(it.tenant, it.session.id),
    "steers_of": lambda store, it: store.steers_of(it.hold),
    "drop_queued": lambda store, it: store.drop_queued(it.tenant, it.session.id, it.queued),
    "park_queued": lambda store, it: store.park_queued(it.tenant, it.session.id, it.queued, "why"),
    "unpark_queued": lambda store, it: store.unpark_queued(it.tenant, it.session.id, it.parked),
    "begin_if_free taking": lambda store, it: store.begin_if_free(
        builders.begin(builders.ask(it.session), turn=it.waiting_turn, takes=it.queued), []
    ),
    "read_events": lambda store, it: store.read_events(it.tenant, it.session.id, after=0),
}
#: Housekeeping of the server itself, and calls whose answer for a stranger is a list of his own.
WITHOUT = {
    "create_session",
    "import_session",
    "existing_sessions",
    "walk_sessions",
    "waiting_queues",
    "list_sessions",
    "usage_of_tenant",
    "expired_attempts",
    "running_attempts",
    "interrupted_asks",
    "failures",
    "waiting_sessions",
    "parked",
    "tidy",
}


def test_I35_no_call_is_missing_here() -> None:
    methods = {
        name
        for part in (SessionStore, TurnStore, AttemptStore, QueueStore, EventStore)
        for name in vars(part)
        if not name.startswith("_")
    }
    assert {name.split()[0] for name in CALLS} | WITHOUT == methods


async def known(store: Store, *, waiting: bool) -> Known:
    session = await builders.session(store, title="title", conversation="c")
    await builders.commit(store, session)
    turn = await builders.edit(store, session, None)  # so there is a branch, too
    tried = await builders.start(store, builders.ask(session), builders.events("a"))
    await store.journal_if_held(tried.hold, [builders.answer("a")], builders.events("b"), batch=BATCH)
    await builders.steer(store, session)
    row, parked = [await builders.followup(store, session) for _ in range(2)]
    await store.park_queued(TENANT, session.id, parked.number, "why")
    await builders.fork(store, session, turn)
    if waiting:
        await store.wait_if_held(tried.hold, {"q": 1}, 60, [])
    return Known(
        TENANT,
        await builders.again(store, session),
        turn,
        tried.hold,
        tried.begin.turn,
        row.turn,
        row.number,
        parked.number,
    )


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("name", CALLS)
async def test_I35_a_foreign_id_answers_like_an_unknown_one_and_changes_nothing(
    backend: Backend, name: str, waiting: bool
) -> None:
    store, call = backend.store, CALLS[name]
    it = await known(store, waiting=waiting)
    before = await dump(backend)
    foreign = await call(store, it.foreign)
    assert foreign == await call(store, it.unknown)
    assert foreign == BeginConflict(None) if name.startswith(("begin", "look_up")) else str(foreign) in EMPTY
    assert await dump(backend) == before


EMPTY = {"None", "False", "()", "{}", "gone", "0", str(CommitResult(Committed.LOST))}


@pytest.mark.parametrize(
    "name",
    sorted(set(CALLS) - {"set_field model", "set_field agent_key", "begin_if_free", "close_requests"}),
)
async def test_the_owner_does_get_an_answer(store: Store, name: str) -> None:
    """Otherwise the test above would prove nothing."""
    it = await known(store, waiting=name == "resume_if_waiting")
    assert str(await CALLS[name](store, it)) not in EMPTY


async def test_I35_other_tenants_list_nothing(store: Store) -> None:
    await known(store, waiting=True)
    assert await store.waiting_sessions(STRANGER, limit=10) == ()
    assert await store.parked(STRANGER, limit=10) == ()
    assert (await store.list_sessions(STRANGER, limit=10)).sessions == ()
    assert (await store.list_sessions(STRANGER, limit=10, query="title")).sessions == ()
    assert await store.usage_of_tenant(STRANGER) == {}
    assert await store.usage_of_tenant(TENANT) != {}
