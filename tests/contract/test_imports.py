"""A session that was made elsewhere comes in whole, or not at all."""

from dataclasses import replace

import pytest

from lastgood.core.commit import link
from lastgood.errors import StoreError
from lastgood.model.agents import Permissions, Safety
from lastgood.model.attempts import AttemptStatus
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.messages import user
from lastgood.model.rules import RuleLayer
from lastgood.model.sessions import NewSession, SessionStatus, TitleBy, Turn, Usage
from lastgood.model.tokens import Scope
from lastgood.ports import Store
from tests.contract import builders
from tests.contract.builders import TENANT
from tests.contract.conftest import Backend, dump
from tests.turn_chains import broken_link

pytestmark = pytest.mark.anyio


async def made_elsewhere(store: Store, count: int) -> tuple[NewSession, list[Turn]]:
    """Turns as an export has them, under new ids. What they were made in is gone."""
    source = await builders.session(store)
    turns = await builders.talk(store, source, count)
    await store.delete_session(TENANT, source.id)
    new = builders.new_session(
        title="from elsewhere",
        title_by=TitleBy.PERSON,
        model="some/model",
        metadata={"a": 1},
        rules=(RuleLayer(Scope.SESSION, "t", Permissions(deny=("x",)), Safety.STRICT),),
    )
    linked: list[Turn] = []
    for place, turn in enumerate(turns):
        base = linked[-1].head if linked else None
        id = TurnId(builders.new_id())
        moved = replace(
            turn,
            id=id,
            session=new.id,
            parent=base.turn if base else None,
            attempt=AttemptId(builders.new_id()),
            created_at=1000.0 + place,
            user="somebody",
            usage=Usage(place + 1, 10 * place, 0.5),
        )
        linked.append(replace(moved, hash=link(base, moved)))
    return new, linked


async def test_an_imported_session_is_its_turns(store: Store) -> None:
    new, turns = await made_elsewhere(store, 4)
    session = await store.import_session(new, turns)
    assert session == await builders.again(store, session)
    for field in new.__dataclass_fields__:
        assert getattr(session, field) == getattr(new, field)
    assert session.head == turns[-1].head
    assert (session.turns, session.usage) == (4, Usage(1 + 2 + 3 + 4, 60, 2.0))
    assert (session.created_at, session.updated_at) == (1000.0, 1003.0)
    assert (session.status, session.attempt, session.fence) == (SessionStatus.IDLE, None, 0)
    found = await store.read_turns(TENANT, turns[-1].id)
    assert list(found) == turns
    assert broken_link(found) is None
    assert await store.find_turn(TENANT, turns[0].id) == turns[0]
    assert await store.get_attempt(TENANT, turns[0].attempt) is None


async def test_an_imported_session_continues_is_forked_and_deleted_like_any_other(backend: Backend) -> None:
    store = backend.store
    new, turns = await made_elsewhere(store, 3)
    session = await store.import_session(new, turns)
    turns.append(await builders.commit(store, session, user("more")))
    assert turns[-1].seq == 4
    fork = await builders.fork(store, await builders.again(store, session), turns[1])
    assert await store.delete_session(TENANT, session.id)
    assert list(await store.read_turns(TENANT, turns[1].id)) == turns[:2]
    assert await store.delete_session(TENANT, fork.id)
    assert await backend.rows("SELECT * FROM turns") == []


async def test_a_session_without_turns_is_one_as_well(store: Store) -> None:
    new, _ = await made_elsewhere(store, 0)
    session = await store.import_session(new, [])
    assert (session.head, session.usage) == (None, Usage())
    assert 1_600_000_000 < session.created_at <= session.updated_at
    await builders.commit(store, session)


@pytest.mark.parametrize("why", ["id", "conversation", "turn", "gap", "first"])
async def test_what_cannot_come_in_whole_does_not_come_in(backend: Backend, why: str) -> None:
    store = backend.store
    new, turns = await made_elsewhere(store, 3)
    there = await builders.session(store, conversation="c")
    turn = await builders.commit(store, there)
    match why:
        case "id":
            new = replace(new, id=there.id)
        case "conversation":
            new = replace(new, conversation="c")
        case "turn":
            turns[2] = replace(turns[2], id=turn.id)
        case "gap":
            turns[1] = replace(turns[1], seq=3)
        case "first":
            turns[1] = replace(turns[1], parent=None)
        case _:
            raise AssertionError(why)
    before = await dump(backend)
    with pytest.raises(StoreError):
        await store.import_session(new, turns)
    assert await dump(backend) == before


async def test_an_import_has_no_attempt(store: Store) -> None:
    """Its turns name attempts that are not here, so there is nothing to recover or tidy."""
    new, turns = await made_elsewhere(store, 2)
    session = await store.import_session(new, turns)
    assert await store.list_attempts(TENANT, session.id) == ()
    assert await store.tidy(events_older_than=-60, keys_older_than=-60) == 0
    tried = await builders.start(store, builders.ask(session))
    assert await store.finish_if_held(tried.hold, AttemptStatus.FAILED, None, [])
    assert (await builders.again(store, session)).head == turns[-1].head


async def test_an_import_of_many_turns_is_its_turns(store: Store) -> None:
    """More than are inserted by one statement."""
    new, turns = await made_elsewhere(store, 3)
    while len(turns) < 450:
        last = turns[-1]
        more = replace(last, id=TurnId(builders.new_id()), seq=last.seq + 1, parent=last.id)
        turns.append(replace(more, hash=link(last.head, more)))
    await store.import_session(new, turns)
    assert list(await store.read_turns(TENANT, turns[-1].id)) == turns
