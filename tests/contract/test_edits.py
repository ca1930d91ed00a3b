"""Edits: a turn that goes on from an earlier one. Its commit moves the head, and keeps what it replaced."""

import asyncio
import random
from dataclasses import dataclass, field, replace

import pytest

from lastgood.model.attempts import (
    AttemptStatus,
    BeginConflict,
    Begun,
    Committed,
    Edit,
    Expected,
    Interrupted,
)
from lastgood.model.ids import TenantId, TurnId
from lastgood.model.messages import user
from lastgood.model.sessions import Session, Turn
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import TENANT
from tests.contract.conftest import Backend, dump
from tests.turn_chains import broken_link

pytestmark = pytest.mark.anyio

HISTORY = ("sessions", "turns", "branches")


async def chain(store: Store, session: Session) -> list[Turn]:
    head = (await builders.again(store, session)).head
    return list(await store.read_turns(session.tenant, head.turn)) if head else []


# --- begin and commit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_an_edit_continues_from_its_base_and_keeps_what_it_replaced(store: Store, place: int) -> None:
    session = await builders.session(store)
    turns = await builders.talk(store, session, 3)
    base = turns[place - 1] if place else None
    new = await builders.edit(store, session, base, user("other"))
    assert (new.parent, new.seq) == (base.id if base else None, place + 1)
    assert await chain(store, session) == [*turns[:place], new]
    found = await builders.again(store, session)
    assert (found.head, found.turns) == (new.head, place + 1)
    (branch,) = await store.list_branches(TENANT, session.id, limit=9)
    assert (branch.head, branch.seq) == (turns[-1].id, 3)
    assert (branch.after, branch.replaced_by) == (new.parent, new.id)
    assert list(await store.read_turns(TENANT, branch.head)) == turns


async def test_I1_siblings_never_mix_however_often_is_edited(store: Store) -> None:
    session = await builders.session(store)
    first, second, third = await builders.talk(store, session, 3)
    other = await builders.edit(store, session, first, user("other"))
    more = await builders.talk(store, session, 2)
    assert await chain(store, session) == [first, other, *more]
    again = await builders.edit(store, session, more[0], user("again"))
    assert await chain(store, session) == [first, other, more[0], again]
    new = await builders.edit(store, session, None, user("from the beginning"))
    assert await chain(store, session) == [new]
    assert [turn.seq for turn in (other, *more, again, new)] == [2, 3, 4, 4, 1]
    branches = await store.list_branches(TENANT, session.id, limit=9)
    chains = [list(await store.read_turns(TENANT, branch.head)) for branch in branches]
    assert chains == [[first, second, third], [first, other, *more], [first, other, more[0], again]]
    assert all(broken_link(turns) is None for turns in (*chains, [new]))


async def test_I5_after_an_edit_turns_are_appended_to_it(store: Store) -> None:
    session = await builders.session(store)
    first, _ = await builders.talk(store, session, 2)
    new = await builders.edit(store, session, first)
    more = await builders.talk(store, session, 3)
    assert await chain(store, session) == [first, new, *more]
    assert [turn.seq for turn in more] == [3, 4, 5]
    assert len(await store.read_turns(TENANT, more[-1].id, after_seq=2)) == 3


async def test_usage_stays_cumulative(store: Store) -> None:
    session = await builders.session(store)
    await builders.talk(store, session, 2)
    before = (await builders.again(store, session)).usage
    await builders.edit(store, session, None)
    after = (await builders.again(store, session)).usage
    assert (after.input_tokens, after.output_tokens) == (before.input_tokens + 10, before.output_tokens + 5)


@pytest.mark.parametrize("status", [status for status in AttemptStatus if status.value in (
    "failed", "cancelled", "interrupted", "superseded")])  # fmt: skip
async def test_I2_an_edit_that_comes_to_nothing_leaves_history_and_branches_unchanged(
    backend: Backend, status: AttemptStatus
) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.talk(store, session, 3)
    head, before = (await builders.again(store, session)).head, await dump(backend)
    tried = await builders.start_edit(store, session, None, user("other"))
    assert (await builders.again(store, session)).head == head, "begin moves nothing"
    assert await store.finish_if_held(tried.hold, status, ("code", "message"), [])
    after = await dump(backend)
    assert (after["turns"], after["branches"]) == (before["turns"], before["branches"])
    assert (await builders.again(store, session)).head == head


async def test_the_base_and_the_head_of_an_edit_are_stored_with_its_attempt_and_request(store: Store) -> None:
    session = await builders.session(store)
    first, second = await builders.talk(store, session, 2)
    tried = await builders.start_edit(store, session, first)
    attempt = await store.get_attempt(TENANT, tried.hold.attempt)
    assert attempt is not None
    assert (attempt.base, attempt.head) == (first.id, second.id)
    assert (tried.begun.base, tried.begun.session.head) == (first.head, second.head)
    request = await store.read_request(TENANT, tried.begin.turn)
    assert request is not None
    assert request.edit == Edit(first.id, second.id)


async def test_an_append_is_no_edit(store: Store) -> None:
    session = await builders.session(store)
    turn = await builders.commit(store, session)
    tried = await builders.start(store, builders.ask(session))
    attempt = await store.get_attempt(TENANT, tried.hold.attempt)
    request = await store.read_request(TENANT, tried.begin.turn)
    assert attempt is not None
    assert request is not None
    assert (attempt.base, attempt.head, request.edit) == (turn.id, turn.id, None)


@pytest.mark.parametrize("names", ["edit", "expected_head", "is_first", "nothing"])
async def test_the_head_that_an_ask_names_is_stored_with_its_request(store: Store, names: str) -> None:
    session = await builders.session(store)
    if names == "is_first":
        tried, condition = await builders.start(store, builders.ask(session, is_first=True)), Expected(None)
    else:
        first, second = await builders.talk(store, session, 2)
        condition = Expected(second.id)
        if names == "edit":
            tried = await builders.start_edit(store, session, first)
        else:
            asked = builders.ask(session, expected_head=second.id if names == "expected_head" else None)
            tried = await builders.start(store, asked)
    request = await store.read_request(TENANT, tried.begin.turn)
    assert request is not None
    assert request.condition == (None if names == "nothing" else condition)


async def test_an_edit_begins_only_at_the_head_that_it_replaces(backend: Backend) -> None:
    store = backend.store
    session = await builders.session(store)
    first, second = await builders.talk(store, session, 2)
    await builders.edit(store, session, first)  # as many turns as before, but other ones
    before = await dump(backend)
    stale = builders.begin(builders.ask(session, edit=Edit(first.id, second.id)), base=first.head)
    assert isinstance(await store.begin_if_free(stale, builders.events("x")), BeginConflict)
    assert await dump(backend) == before


@pytest.mark.parametrize("wrong", ["head", "parent", "both"])
async def test_I10_a_commit_of_an_edit_compares_the_head_and_the_base(backend: Backend, wrong: str) -> None:
    store = backend.store
    session = await builders.session(store)
    first, second, _ = await builders.talk(store, session, 3)
    tried = await builders.start_edit(store, session, first)
    plan = tried.plan()
    if wrong in ("head", "both"):
        plan = replace(plan, head=second.id)
    if wrong in ("parent", "both"):
        plan = replace(plan, turn=replace(plan.turn, parent=second.id, seq=3))
    before = await dump(backend)
    assert (await store.commit_if_head(tried.hold, plan, builders.events("x"))).outcome is Committed.LOST
    assert await dump(backend) == before


async def test_of_an_edit_and_an_append_at_once_exactly_one_begins(store: Store) -> None:
    for _ in range(10):
        session = await builders.session(store)
        (first, second) = await builders.talk(store, session, 2)
        edit = builders.begin(builders.ask(session, edit=Edit(first.id, second.id)), base=first.head)
        append = builders.begin(builders.ask(session, expected_head=second.id))
        found = await asyncio.gather(store.begin_if_free(edit, []), store.begin_if_free(append, []))
        assert sum(isinstance(one, Begun) for one in found) == 1


async def test_an_edit_is_tried_again_as_the_edit_that_it_was(store: Store) -> None:
    session = await builders.session(store)
    first, second = await builders.talk(store, session, 2)
    tried = await builders.start_edit(store, session, first, user("other"), durable=True)
    await store.finish_if_held(tried.hold, AttemptStatus.INTERRUPTED, ("c", "m"), [])
    (found,) = await store.interrupted_asks(9, deaths_below=3)
    assert isinstance(found, Interrupted)
    assert (found.request.edit, found.head) == (Edit(first.id, second.id), second.id)
    again = replace(
        builders.begin(replace(tried.begin.ask), turn=tried.begin.turn, base=first.head), again=True
    )
    begun = await store.begin_if_free(again, [])
    assert isinstance(begun, Begun)
    assert (begun.base, begun.number) == (first.head, 2)


# --- reading -----------------------------------------------------------------------------------------------


async def test_a_turn_is_found_at_its_place_of_a_chain(store: Store) -> None:
    session = await builders.session(store)
    turns = await builders.talk(store, session, 4)
    fork = await builders.fork(store, await builders.again(store, session), turns[2])
    own = await builders.talk(store, fork, 2)
    new = await builders.edit(store, fork, turns[1])
    chains = [turns, [*turns[:3], *own], [*turns[:2], new]]
    for whole in chains:
        for turn in whole:
            assert await store.turn_at(TENANT, whole[-1].id, turn.seq) == turn
        for nowhere in (0, len(whole) + 1):
            assert await store.turn_at(TENANT, whole[-1].id, nowhere) is None
    assert await store.turn_at(TENANT, TurnId("unknown"), 1) is None


async def test_branches_are_listed_page_by_page(store: Store) -> None:
    session, other = await builders.session(store), await builders.session(store)
    await builders.commit(store, session)
    for _ in range(5):
        await builders.edit(store, session, None)
    seen: list[TurnId] = []
    after = 0
    while page := await store.list_branches(TENANT, session.id, after=after, limit=2):
        assert len(page) <= 2
        seen += [branch.head for branch in page]
        after = page[-1].number
    assert len(set(seen)) == 5
    assert await store.count_branches(TENANT, session.id) == 5
    assert await store.count_branches(TENANT, other.id) == 0


# --- the end -----------------------------------------------------------------------------------------------


@dataclass
class Family:
    """Sessions of one tenant, and what they need: the chains of their heads and of their branches."""

    store: Store
    tenant: TenantId
    sessions: list[Session] = field(default_factory=list)
    chains: dict[int, list[list[Turn]]] = field(default_factory=dict)  # the head's is the last

    async def create(self) -> int:
        return self._add(await builders.session(self.store, self.tenant), [])

    async def fork(self, source: int, turn: Turn | None) -> int:
        inherited: list[Turn] = []
        if turn is not None:
            (*_, found) = [whole for whole in self.chains[source] if turn in whole]
            inherited = found[: found.index(turn) + 1]
        return self._add(await builders.fork(self.store, self.sessions[source], turn), inherited)

    def _add(self, session: Session, chain: list[Turn]) -> int:
        self.sessions.append(session)
        self.chains[len(self.sessions) - 1] = [chain]
        return len(self.sessions) - 1

    async def talk(self, place: int, turns: int = 1) -> None:
        self.chains[place][-1] += await builders.talk(self.store, self.sessions[place], turns)

    async def edit(self, place: int, kept: int) -> None:
        """Replaces everything after the first `kept` turns of the head's chain."""
        before = self.chains[place][-1][:kept]
        new = await builders.edit(self.store, self.sessions[place], before[-1] if before else None)
        self.chains[place].append([*before, new])

    async def delete(self, place: int) -> None:
        assert await self.store.delete_session(self.tenant, self.sessions[place].id)
        del self.chains[place]

    async def check(self, backend: Backend) -> None:
        rows = await backend.rows(f"SELECT id FROM turns WHERE tenant = '{self.tenant}'")
        needed = {turn.id for chains in self.chains.values() for chain in chains for turn in chain}
        assert {id for (id,) in rows} == needed
        rows = await backend.rows(f"SELECT session_id, head FROM branches WHERE tenant = '{self.tenant}'")
        assert sorted(map(tuple, rows)) == sorted(
            (self.sessions[place].id, chain[-1].id)
            for place, chains in self.chains.items()
            for chain in chains[:-1]
        )
        for place, chains in self.chains.items():
            assert await chain(self.store, self.sessions[place]) == chains[-1]
            for whole in chains[:-1]:
                assert list(await self.store.read_turns(self.tenant, whole[-1].id)) == whole


async def test_I15_a_branch_dies_with_its_session(backend: Backend) -> None:
    family = Family(backend.store, TENANT)
    place = await family.create()
    await family.talk(place, 3)
    await family.edit(place, 1)
    await family.talk(place)
    await family.edit(place, 2)
    await family.check(backend)
    await family.delete(place)
    for table in ("turns", "branches", "attempts", "requests", "sessions"):
        assert await backend.rows(f"SELECT * FROM {table}") == [], table


@pytest.mark.parametrize("first", ["source", "fork"])
async def test_I6_a_fork_of_a_branch_outlives_what_it_started_from(backend: Backend, first: str) -> None:
    family = Family(backend.store, TENANT)
    source = await family.create()
    await family.talk(source, 3)
    replaced = family.chains[source][0][1]
    await family.edit(source, 1)
    fork = await family.fork(source, replaced)
    await family.talk(fork)
    await family.check(backend)
    for place in (source, fork) if first == "source" else (fork, source):
        await family.delete(place)
        await family.check(backend)


@pytest.mark.parametrize("order", ["source first", "fork first"])
async def test_I6_a_fork_that_is_edited_below_its_origin_keeps_what_it_inherited(
    backend: Backend, order: str
) -> None:
    family = Family(backend.store, TENANT)
    source = await family.create()
    await family.talk(source, 4)
    fork = await family.fork(source, family.chains[source][0][2])
    await family.edit(fork, 1)
    await family.talk(fork)
    await family.check(backend)
    for place in (source, fork) if order == "source first" else (fork, source):
        await family.delete(place)
        await family.check(backend)


@pytest.mark.parametrize("seed", range(6))
async def test_I6_a_delete_erases_exactly_what_nothing_reaches_after_any_forks_and_edits(
    backend: Backend, seed: int
) -> None:
    choose = random.Random(seed)
    family = Family(backend.store, TenantId(f"tenant-{seed}"))
    await family.talk(await family.create(), 3)
    for _ in range(25):
        living = list(family.chains)
        place = choose.choice(living) if living else await family.create()
        kept = len(family.chains[place][-1])
        match choose.choice(["talk", "talk", "edit", "edit", "fork", "fork", "delete"]):
            case "edit" if kept:
                await family.edit(place, choose.randrange(kept))
            case "fork":
                whole = choose.choice(family.chains[place])
                await family.fork(place, choose.choice([None, *whole]))
            case "delete":
                await family.delete(place)
                await family.check(backend)
            case _:
                await family.talk(place)
    for place in choose.sample(list(family.chains), len(family.chains)):
        await family.delete(place)
        await family.check(backend)
