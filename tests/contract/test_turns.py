"""Committed turns: one way in, and then for ever."""

from dataclasses import replace
from typing import Any

import pytest

from lastgood.errors import StoreError
from lastgood.model.attempts import AttemptStatus, Committed
from lastgood.model.ids import AttemptId, SessionId, TenantId, TurnId
from lastgood.model.messages import assistant, user
from lastgood.model.sessions import SessionStatus, TurnKind, Usage
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import TENANT
from tests.contract.conftest import Backend, dump
from tests.turn_chains import broken_link

pytestmark = pytest.mark.anyio


async def test_a_commit_appends_the_turn_and_frees_the_session(store: Store) -> None:
    session = await builders.session(store)
    tried = await builders.start(store, builders.ask(session))
    planned = tried.plan(builders.answer("one"), builders.answer("two"))
    assert (await store.commit_if_head(tried.hold, planned, [])).outcome is Committed.YES

    now = await builders.again(store, session)
    assert now.head == planned.turn.head
    assert (now.turns, now.status, now.attempt) == (1, SessionStatus.IDLE, None)
    assert now.usage == Usage(20, 10, 0.5)
    assert now.updated_at == planned.turn.created_at
    assert await store.read_turns(TENANT, planned.turn.id) == (planned.turn,)
    assert await store.find_turn(TENANT, planned.turn.id) == planned.turn
    attempt = await store.get_attempt(TENANT, tried.hold.attempt)
    assert attempt is not None
    assert attempt.status is AttemptStatus.COMMITTED
    assert attempt.ended_at is not None


async def test_I3_a_turn_keeps_every_message_of_its_input_and_the_request_forgets_it(store: Store) -> None:
    session = await builders.session(store)
    input = (user("one"), assistant("two"), user('three "\\ \n 🧭 é \x7f'))
    turn = await builders.commit(store, session, *input, text="answer")
    (found,) = await store.read_turns(TENANT, turn.id)
    assert found.messages == (*input, assistant("answer"))
    request = await store.read_request(TENANT, turn.id)
    assert request is not None
    assert request.messages is None


@pytest.mark.parametrize("kind", TurnKind)
async def test_every_kind_of_turn_comes_back_as_it_went_in(store: Store, kind: TurnKind) -> None:
    session = await builders.session(store)
    turn = await builders.commit(store, session, kind=kind)
    assert await store.find_turn(TENANT, turn.id) == turn
    assert turn.kind is kind


@pytest.mark.parametrize("override", [None, "other/model"])
async def test_M3_3_an_override_holds_for_its_turn_and_every_later_one(
    store: Store, override: str | None
) -> None:
    session = await builders.session(store)
    turn = await builders.commit(store, session, model=override)
    assert turn.model == (override or "default/model")
    assert (await builders.again(store, session)).model == override
    later = await builders.commit(store, session)
    assert later.model == turn.model
    assert (await builders.again(store, session)).model == override


async def test_M3_3_a_failed_turn_leaves_no_override(store: Store) -> None:
    session = await builders.session(store, model="first/model")
    tried = await builders.start(store, builders.ask(session, model="other/model"))
    assert tried.begun.model == "other/model"
    assert await store.finish_if_held(tried.hold, AttemptStatus.FAILED, ("code", "why"), [])
    assert (await builders.again(store, session)).model == "first/model"


WRONG_HOLDS: dict[str, dict[str, Any]] = {
    "an older fence": {"fence": 1},
    "a newer fence": {"fence": 9},
    "another attempt": {"attempt": AttemptId("other")},
    "another session": {"session": SessionId("other")},
    "another tenant": {"tenant": TenantId("other")},
}
WRONG_BASES: dict[str, dict[str, Any]] = {
    "no base": {"parent": None, "seq": 1},
    "an older base": {"parent": TurnId("older")},
}


@pytest.mark.parametrize("wrong", WRONG_HOLDS)
async def test_I10_a_commit_without_the_hold_is_lost_and_writes_nothing(backend: Backend, wrong: str) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.commit(store, session)
    tried = await builders.start(store, builders.ask(session))
    before = await dump(backend)
    hold = replace(tried.hold, **WRONG_HOLDS[wrong])
    assert (await store.commit_if_head(hold, tried.plan(), builders.events("x"))).outcome is Committed.LOST
    assert await dump(backend) == before
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES


@pytest.mark.parametrize("wrong", WRONG_BASES)
async def test_I1_a_commit_onto_another_head_is_lost_and_writes_nothing(backend: Backend, wrong: str) -> None:
    store = backend.store
    session = await builders.session(store)
    await builders.commit(store, session)
    tried = await builders.start(store, builders.ask(session))
    before = await dump(backend)
    planned = tried.plan()
    stale = replace(planned, turn=replace(planned.turn, **WRONG_BASES[wrong]))
    assert (await store.commit_if_head(tried.hold, stale, builders.events("x"))).outcome is Committed.LOST
    assert await dump(backend) == before


async def test_I1_a_commit_with_a_base_onto_an_empty_session_is_lost(backend: Backend) -> None:
    store = backend.store
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    before = await dump(backend)
    stale = replace(tried.plan(), turn=replace(tried.plan().turn, parent=TurnId("other"), seq=2))
    assert (await store.commit_if_head(tried.hold, stale, [])).outcome is Committed.LOST
    assert await dump(backend) == before


async def test_I14_a_commit_happens_once(backend: Backend) -> None:
    store = backend.store
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES
    before = await dump(backend)
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.LOST
    assert await dump(backend) == before


async def test_I3_a_turn_id_is_taken_once_and_the_second_commit_changes_nothing(backend: Backend) -> None:
    store = backend.store
    taken = await builders.commit(store, await builders.session(store))
    tried = await builders.start(store, builders.ask(await builders.session(store)))
    before = await dump(backend)
    forged = replace(tried.plan(), turn=replace(tried.plan().turn, id=taken.id))
    with pytest.raises(StoreError):
        await store.commit_if_head(tried.hold, forged, builders.events("x"))
    assert await dump(backend) == before
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome is Committed.YES


async def test_I5_numbers_are_dense_whatever_failed_between(store: Store) -> None:
    session = await builders.session(store)
    for status in (AttemptStatus.FAILED, AttemptStatus.CANCELLED, AttemptStatus.INTERRUPTED):
        await builders.commit(store, session)
        tried = await builders.start(store, builders.ask(session))
        await store.finish_if_held(tried.hold, status, None, [])
    last = await builders.commit(store, session)
    turns = await store.read_turns(TENANT, last.id)
    assert [turn.seq for turn in turns] == [1, 2, 3, 4]
    assert [turn.parent for turn in turns] == [None, *(turn.id for turn in turns[:-1])]


async def test_I6_the_hash_chain_verifies_and_a_changed_byte_is_found(backend: Backend) -> None:
    store = backend.store
    turns = await builders.talk(store, await builders.session(store), 4)
    assert broken_link(await store.read_turns(TENANT, turns[-1].id)) is None

    changed = turns[1].body.replace(b"question", b"Question").hex()
    value = f"x'{changed}'" if backend.name == "sqlite" else f"'\\x{changed}'"
    await backend.execute(f"UPDATE turns SET body = {value} WHERE id = '{turns[1].id}'")
    broken = broken_link(await store.read_turns(TENANT, turns[-1].id))
    assert broken is not None
    assert broken.id == turns[1].id


async def test_a_chain_is_read_from_any_head_and_after_any_number(store: Store) -> None:
    turns = await builders.talk(store, await builders.session(store), 4)
    for upto in range(4):
        for after in range(6):
            found = await store.read_turns(TENANT, turns[upto].id, after_seq=after)
            assert list(found) == turns[after : upto + 1]


async def test_a_chain_is_read_across_forks_of_forks(store: Store) -> None:
    first = await builders.session(store)
    one = await builders.talk(store, first, 4)
    second = await builders.fork(store, first, one[2])
    two = await builders.talk(store, second, 2)
    third = await builders.fork(store, second, two[0])
    fourth = await builders.fork(store, third, two[0])
    four = await builders.talk(store, fourth, 2)
    whole = [*one[:3], two[0], *four]
    for after in range(8):
        assert list(await store.read_turns(TENANT, four[-1].id, after_seq=after)) == whole[after:]
    assert broken_link(await store.read_turns(TENANT, four[-1].id)) is None


async def test_an_unknown_turn_is_no_turn(store: Store) -> None:
    assert await store.find_turn(TENANT, TurnId("unknown")) is None
    assert await store.read_turns(TENANT, TurnId("unknown")) == ()


@pytest.mark.parametrize("place", [0, 1, 2, None])
async def test_a_fork_is_a_pointer_and_copies_no_message(backend: Backend, place: int | None) -> None:
    store = backend.store
    source = await builders.session(store)
    turns = await builders.talk(store, source, 3)
    before = await dump(backend)
    at = None if place is None else turns[place]
    made = await builders.fork(store, source, at)

    assert made.head == (at.head if at else None)
    assert made.forked_from == (source.id, at.id if at else None)
    assert (made.status, made.usage) == (SessionStatus.IDLE, Usage())
    after = await dump(backend)
    assert len(after.pop("sessions")) == len(before.pop("sessions")) + 1
    assert after == before


async def test_a_fork_and_its_source_go_their_own_ways(store: Store) -> None:
    source = await builders.session(store)
    turns = await builders.talk(store, source, 2)
    made = await builders.fork(store, source, turns[1])
    ours, theirs = await builders.commit(store, made), await builders.commit(store, source)
    assert ours.seq == theirs.seq == 3
    assert list(await store.read_turns(TENANT, ours.id)) == [*turns, ours]
    assert list(await store.read_turns(TENANT, theirs.id)) == [*turns, theirs]


async def test_a_fork_of_a_session_that_is_gone_is_refused(backend: Backend) -> None:
    store = backend.store
    source = await builders.session(store)
    (turn,) = await builders.talk(store, source, 1)
    await store.delete_session(TENANT, source.id)
    before = await dump(backend)
    assert await store.fork_session(source, turn, builders.new_session()) is None
    assert await dump(backend) == before
