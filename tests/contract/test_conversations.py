"""Conversations: a name that a client gave is one session of its tenant, whoever asks for it first."""

import asyncio
import random
import string
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest

from lastgood.agents.catalog import Catalog
from lastgood.errors import Conflict, InvalidRequest
from lastgood.flows.sessions import Sessions
from lastgood.model.sessions import NewSession, Session
from lastgood.ports import Store
from lastgood.store.postgres import PostgresStore, open_postgres
from lastgood.wiring import assemble
from tests.contract import builders
from tests.contract.builders import STRANGER, TENANT
from tests.contract.conftest import Backend, dump
from tests.contract.test_postgres_races import Outside, queued
from tests.engines import Kit

pytestmark = pytest.mark.anyio

CREATORS = 16


def named(name: str = "c") -> NewSession:
    return builders.new_session(conversation=name)


# --- one name, one session ---------------------------------------------------------------------------------


async def test_a_conversation_is_found_by_its_name_as_it_is_now(store: Store) -> None:
    session = await builders.session(store, conversation="c")
    await builders.session(store, conversation="other")
    assert await store.find_conversation(TENANT, "c") == session
    await builders.talk(store, session, 2)
    found = await store.find_conversation(TENANT, "c")
    assert found == await builders.again(store, session)
    assert found is not None
    assert (found.turns, found.conversation) == (2, "c")


async def test_an_unknown_name_is_no_conversation(store: Store) -> None:
    session = await builders.session(store, title="title")  # has no name, and its id and title are none
    for name in ("unknown", "", session.id, "title", "None"):
        assert await store.find_conversation(TENANT, name) is None


async def test_a_name_that_is_taken_makes_no_second_session_and_changes_nothing(backend: Backend) -> None:
    await builders.commit(backend.store, await builders.session(backend.store, conversation="c"))
    before = await dump(backend)
    assert await backend.store.create_session(named()) is None
    assert await dump(backend) == before


async def test_sessions_without_a_name_never_meet(store: Store) -> None:
    made = {(await builders.session(store)).id for _ in range(3)}
    assert len(made) == 3


@pytest.mark.parametrize("name", ["C", "c ", " c", "ç", "c\u0327", "c%", "_", "🧭", "c\n"])
async def test_names_that_differ_in_anything_are_different_conversations(store: Store, name: str) -> None:
    plain, other = (
        await builders.session(store, conversation="c"),
        await builders.session(store, conversation=name),
    )
    assert await store.find_conversation(TENANT, "c") == plain
    assert await store.find_conversation(TENANT, name) == other


async def test_I35_the_same_name_in_two_tenants_is_two_sessions(store: Store) -> None:
    ours = await builders.session(store, conversation="c")
    assert await store.find_conversation(STRANGER, "c") is None
    theirs = await builders.session(store, STRANGER, conversation="c")
    assert await store.find_conversation(TENANT, "c") == ours
    assert await store.find_conversation(STRANGER, "c") == theirs


async def test_a_fork_leaves_the_name_to_its_source(store: Store) -> None:
    session = await builders.session(store, conversation="c")
    turn = await builders.commit(store, session)
    fork = await builders.fork(store, await builders.again(store, session), turn)
    assert fork.conversation is None
    assert await store.find_conversation(TENANT, "c") == await builders.again(store, session)


async def test_I15_a_deleted_conversation_can_be_created_again_and_is_empty(store: Store) -> None:
    first = await builders.session(store, conversation="c")
    await builders.commit(store, first)
    assert await store.delete_session(TENANT, first.id)
    assert await store.find_conversation(TENANT, "c") is None
    second = await builders.session(store, conversation="c")
    assert second.id != first.id
    assert (second.head, second.turns) == (None, 0)
    assert await store.find_conversation(TENANT, "c") == second


# --- two at once -------------------------------------------------------------------------------------------


async def only_one(store: Store, made: Sequence[Session | None]) -> Session:
    """The session of the one that made it, after looking that there is no other."""
    [session] = [one for one in made if one is not None]
    assert (await store.list_sessions(TENANT, limit=200)).sessions == (session,)
    assert await store.find_conversation(TENANT, "c") == session
    return session


async def test_of_many_creators_at_once_one_makes_the_session(store: Store) -> None:
    await only_one(store, await asyncio.gather(*(store.create_session(named()) for _ in range(CREATORS))))


@pytest.fixture
async def nodes(postgres_database: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore, Outside]]:
    """Two nodes and somebody else, on a connection each."""
    connection = await asyncpg.connect(postgres_database)
    await connection.execute("DELETE FROM sessions")
    one, other = await open_postgres(postgres_database), await open_postgres(postgres_database)
    yield one, other, Outside(postgres_database, connection)
    await one.close()
    await other.close()
    await connection.close()


#: Somebody who is about to make the conversation: others wait for what becomes of it.
HALF_MADE = """
INSERT INTO sessions (id, tenant, agent_key, conversation, segment, created_at, updated_at)
VALUES ('half-made', 'tenant', 'agent', $1, 'half-made', 0, 0)
"""


async def test_of_many_creators_on_two_nodes_one_makes_the_session(
    nodes: tuple[PostgresStore, PostgresStore, Outside],
) -> None:
    one, other, _ = nodes
    both = [node.create_session(named()) for _ in range(CREATORS) for node in (one, other)]
    await only_one(one, await asyncio.gather(*both))


async def test_creators_that_waited_for_one_that_gave_up_make_one_session(
    nodes: tuple[PostgresStore, PostgresStore, Outside],
) -> None:
    one, other, outside = nodes
    waiting = [node.create_session(named()) for node in (one, other, one, other)]
    await only_one(one, await queued(outside, HALF_MADE, "c", *waiting))


async def test_creators_that_waited_for_another_find_its_session(
    nodes: tuple[PostgresStore, PostgresStore, Outside],
) -> None:
    one, other, outside = nodes
    async with outside.connection.transaction():
        await outside.value(HALF_MADE, "c")
        tasks = [asyncio.ensure_future(node.create_session(named())) for node in (one, other)]
        await outside.until_waiting(2)
        assert await one.find_conversation(TENANT, "c") is None
    assert await asyncio.gather(*tasks) == [None, None]
    found = await other.find_conversation(TENANT, "c")
    assert found is not None
    assert found.id == "half-made"


async def test_I15_a_creator_that_waited_for_a_delete_creates_the_conversation_again(
    nodes: tuple[PostgresStore, PostgresStore, Outside],
) -> None:
    one, other, outside = nodes
    first = await builders.session(one, conversation="c")
    async with outside.connection.transaction():
        await outside.value("DELETE FROM sessions WHERE id = $1", first.id)
        task = asyncio.ensure_future(other.create_session(named()))
        await outside.until_waiting(1)
    second = await only_one(one, [await task])
    assert second.id != first.id


# --- asked for by name -------------------------------------------------------------------------------------


def sessions_on(store: Store) -> Sessions:
    return assemble(store, Kit().engine(), Catalog(())).sessions


async def test_a_conversation_is_made_when_it_is_first_requested(store: Store) -> None:
    sessions = sessions_on(store)
    first = await sessions.of_conversation(TENANT, "c", "agent")
    assert (first.conversation, first.agent_key) == ("c", "agent")
    await builders.commit(store, first)
    again = await sessions.of_conversation(TENANT, "c", "other agent")
    assert again == await builders.again(store, first)
    theirs = await sessions.of_conversation(STRANGER, "c", "agent")
    assert (theirs.id != first.id, theirs.tenant) == (True, STRANGER)


async def test_all_that_ask_for_a_conversation_at_once_get_the_same_session(store: Store) -> None:
    one, other = sessions_on(store), sessions_on(store)
    asked = [node.of_conversation(TENANT, "c", "agent") for _ in range(CREATORS) for node in (one, other)]
    found = await asyncio.gather(*asked)
    assert {session.id for session in found} == {(await only_one(store, [found[0]])).id}


async def test_a_session_that_must_be_new_is_refused_where_the_conversation_exists(backend: Backend) -> None:
    sessions = sessions_on(backend.store)
    await sessions.create(TENANT, "agent", conversation="c")
    before = await dump(backend)
    with pytest.raises(Conflict, match="'c' already"):
        await sessions.create(TENANT, "agent", conversation="c")
    assert await dump(backend) == before


#: Longer ones fit into no index of PostgreSQL. Of random letters: it would compress others.
TOO_LONG = "".join(random.Random(1).choices(string.ascii_letters, k=4000))


@pytest.mark.parametrize("name", ["", "a\x00b", "a\ud800b", "x" * 256, TOO_LONG])
async def test_a_name_that_cannot_be_stored_is_refused_and_leaves_nothing(
    backend: Backend, name: str
) -> None:
    sessions = sessions_on(backend.store)
    before = await dump(backend)
    with pytest.raises(InvalidRequest, match=r"(?i)the conversation|conversation name"):
        await sessions.of_conversation(TENANT, name, "agent")
    with pytest.raises(InvalidRequest, match=r"(?i)the conversation|conversation name"):
        await sessions.create(TENANT, "agent", conversation=name)
    assert await dump(backend) == before


async def test_the_longest_name_is_stored_in_any_script(store: Store) -> None:
    name = "".join(random.Random(2).choices("🧭🦊🐢🌲🍄🪵🔥🌊🌙⭐", k=255))
    made = await sessions_on(store).of_conversation(TENANT, name, "agent")
    assert await store.find_conversation(TENANT, name) == made
