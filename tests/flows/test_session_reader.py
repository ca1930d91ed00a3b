"""What may be done to a session besides talking to it."""

from __future__ import annotations

import pytest

from lastgood.errors import (
    InvalidRequest,
    ModelUnknown,
    NothingPending,
    SessionBusy,
    SessionNotFound,
    TurnNotFound,
)
from lastgood.model.answers import Answer, AnswerAction
from lastgood.model.attempts import AttemptStatus
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId, TenantId, TurnId
from lastgood.model.sessions import SessionStatus
from lastgood.wiring import Lastgood
from tests.faults.world import OTHER_MODEL
from tests.flows.cluster import Cluster, Gate, gate_tool

pytestmark = pytest.mark.anyio

STRANGER = TenantId("stranger")


async def test_sessions_are_listed_newest_first_and_by_pages(cluster: Cluster, node: Lastgood) -> None:
    made = [await cluster.session(node, title=f"session {n}") for n in range(7)]
    seen: list[SessionId] = []
    cursor = None
    while True:
        page = await node.sessions.list(DEFAULT_TENANT, limit=3, cursor=cursor)
        seen += [session.id for session in page.sessions]
        # What is created meanwhile moves no page.
        await cluster.session(node, title="later")
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == made[::-1]
    assert (await node.sessions.newest(DEFAULT_TENANT, 4)).id == made[-1]
    with pytest.raises(SessionNotFound):
        await node.sessions.newest(DEFAULT_TENANT, 50)


async def test_a_turn_does_not_move_a_session_in_the_list(cluster: Cluster, node: Lastgood) -> None:
    first, second = await cluster.session(node), await cluster.session(node)
    await cluster.good(node, first, "hello")
    page = await node.sessions.list(DEFAULT_TENANT)
    assert [session.id for session in page.sessions] == [second, first]
    assert [session.turns for session in page.sessions] == [0, 1]


async def test_a_search_finds_titles(cluster: Cluster, node: Lastgood) -> None:
    found = await cluster.session(node, title="Weather in Oslo")
    for other in ("Trains", "100% sure", "a_b"):
        await cluster.session(node, title=other)
    for query, count in (("oslo", 1), ("weather IN", 1), ("%", 1), ("_", 1), ("nothing like it", 0), ("", 4)):
        page = await node.sessions.list(DEFAULT_TENANT, query=query)
        assert len(page.sessions) == count, query
    assert (await node.sessions.list(DEFAULT_TENANT, query="oslo")).sessions[0].id == found


@pytest.mark.parametrize("limit", [0, -1, 201])
async def test_a_page_has_a_size_from_1_to_200(node: Lastgood, limit: int) -> None:
    with pytest.raises(InvalidRequest):
        await node.sessions.list(DEFAULT_TENANT, limit=limit)


async def test_a_running_session_says_so(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await cluster.session(node)
    running = await cluster.submit(node, session, "!tool gate {}")
    await gate.until_reached()
    found = await node.sessions.get(DEFAULT_TENANT, session)
    assert (found.status, found.attempt) == (SessionStatus.RUNNING, running.attempt)
    gate.open()
    await cluster.outcome(node, running)
    found = await node.sessions.get(DEFAULT_TENANT, session)
    assert (found.status, found.attempt) == (SessionStatus.IDLE, None)


async def test_fields_are_written_one_by_one_also_while_busy(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await cluster.session(node, metadata={"a": 1})
    running = await cluster.submit(node, session, "!tool gate {}")
    await gate.until_reached()
    await node.sessions.rename(DEFAULT_TENANT, session, "  my\n title ")
    await node.sessions.star(DEFAULT_TENANT, session, True)
    await node.sessions.set_metadata(DEFAULT_TENANT, session, {"b": [2]})
    gate.open()
    assert (await cluster.outcome(node, running)).status is AttemptStatus.COMMITTED
    await cluster.quiet(node)
    found = await node.sessions.get(DEFAULT_TENANT, session)
    assert (found.title, found.starred, found.metadata) == ("my title", True, {"b": [2]})
    await node.sessions.star(DEFAULT_TENANT, session, False)
    assert not (await node.sessions.get(DEFAULT_TENANT, session)).starred


@pytest.mark.parametrize("title", ["", " \n", "x" * 201, "a\x00", "\ud800"])
async def test_an_invalid_title_is_rejected(cluster: Cluster, node: Lastgood, title: str) -> None:
    session = await cluster.session(node, title="as it was")
    with pytest.raises(InvalidRequest):
        await node.sessions.rename(DEFAULT_TENANT, session, title)
    assert (await node.sessions.get(DEFAULT_TENANT, session)).title == "as it was"


# -- forks ---------------------------------------------------------------------------


async def test_a_fork_continues_from_its_turn_and_copies_nothing(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node, title="tale", metadata={"a": 1}, working_dir="/")
    turns = [await cluster.good(node, session, f"{n}") for n in range(4)]
    rows = await cluster.backend.rows("SELECT count(*) FROM turns")
    fork = await node.sessions.fork(DEFAULT_TENANT, session, turns[1].id)
    assert await cluster.backend.rows("SELECT count(*) FROM turns") == rows
    assert (fork.title, fork.metadata, fork.working_dir) == ("tale (fork 1)", {"a": 1}, "/")
    assert (fork.turns, fork.forked_from) == (2, (session, turns[1].id))
    assert await cluster.turns(fork.id) == (await cluster.turns(session))[:2]
    await cluster.good(node, fork.id, "elsewhere")
    assert [text for role, text in cluster.last_prompt if role == "user"] == ["0", "1", "elsewhere"]
    assert (await cluster.get(session)).turns == 4
    assert (await node.sessions.read(DEFAULT_TENANT, fork.id)).chain.damage is None


async def test_a_fork_of_a_fork_reaches_through_both(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    first = [await cluster.good(node, session, f"a{n}") for n in range(3)]
    fork = await node.sessions.fork(DEFAULT_TENANT, session, first[1].id)
    await cluster.good(node, fork.id, "b0")
    second = await cluster.good(node, fork.id, "b1")
    leaf = await node.sessions.fork(DEFAULT_TENANT, fork.id)
    assert leaf.head == second.head
    inner = await node.sessions.fork(DEFAULT_TENANT, leaf.id, first[0].id)
    for dead in (session, fork.id):
        await node.sessions.delete(DEFAULT_TENANT, dead)
    await cluster.good(node, leaf.id, "c")
    assert [text for role, text in cluster.last_prompt if role == "user"] == ["a0", "a1", "b0", "b1", "c"]
    await cluster.good(node, inner.id, "d")
    assert [text for role, text in cluster.last_prompt if role == "user"] == ["a0", "d"]
    for one in (leaf.id, inner.id):
        assert (await node.sessions.read(DEFAULT_TENANT, one)).chain.damage is None


async def test_only_a_turn_of_its_own_chain_can_be_forked_from(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    turns = [await cluster.good(node, session, f"{n}") for n in range(3)]
    fork = await node.sessions.fork(DEFAULT_TENANT, session, turns[0].id)
    await cluster.good(node, fork.id, "b")
    await cluster.good(node, fork.id, "c")
    other = await cluster.session(node)
    foreign = await cluster.good(node, other, "x")
    for turn in (turns[1].id, foreign.id, TurnId("turn_unknown")):
        with pytest.raises(TurnNotFound):
            await node.sessions.fork(DEFAULT_TENANT, fork.id, turn)
    empty = await cluster.session(node)
    assert (await node.sessions.fork(DEFAULT_TENANT, empty)).head is None
    with pytest.raises(TurnNotFound):
        await node.sessions.fork(DEFAULT_TENANT, empty, turns[0].id)


async def test_a_fork_taken_while_a_turn_runs_is_of_what_was_committed(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await cluster.session(node)
    await cluster.good(node, session, "one")
    running = await cluster.submit(node, session, "two\n!tool gate {}")
    await gate.until_reached()
    fork = await node.sessions.fork(DEFAULT_TENANT, session)
    await cluster.good(node, fork.id, "free at once")
    assert [text for role, text in cluster.last_prompt if role == "user"] == ["one", "free at once"]
    gate.open()
    await cluster.outcome(node, running)
    assert (await cluster.get(fork.id)).turns == (await cluster.get(session)).turns == 2


# -- what is not there ------------------------------------------------------------------


@pytest.mark.parametrize("who", ["unknown", "foreign", "deleted"])
async def test_I35_unknown_foreign_and_deleted_ids_answer_alike(
    cluster: Cluster, node: Lastgood, who: str
) -> None:
    session = await cluster.session(node, title="as it was")
    turn = await cluster.good(node, session, "hello")
    tenant = STRANGER if who == "foreign" else DEFAULT_TENANT
    asked = SessionId("ses_unknown") if who == "unknown" else session
    if who == "deleted":
        await node.sessions.delete(DEFAULT_TENANT, session)
    calls = {
        "get": node.sessions.get(tenant, asked),
        "read": node.sessions.read(tenant, asked),
        "attempts": node.sessions.attempts(tenant, asked),
        "rename": node.sessions.rename(tenant, asked, "mine now"),
        "star": node.sessions.star(tenant, asked, True),
        "metadata": node.sessions.set_metadata(tenant, asked, {"mine": True}),
        "rebind": node.sessions.rebind(tenant, asked, "another"),
        "fork": node.sessions.fork(tenant, asked),
        "fork at a turn": node.sessions.fork(tenant, asked, turn.id),
        "delete": node.sessions.delete(tenant, asked),
        "cancel": node.turns.cancel(tenant, asked),
        "answer": node.turns.answer(tenant, asked, AttemptId(turn.attempt), Answer(AnswerAction.SKIP)),
        "submit": cluster.submit(node, asked, "me", tenant=tenant),
    }
    messages = set()
    for name, call in calls.items():
        with pytest.raises(SessionNotFound) as refused:
            await call
        messages.add((name, refused.value.message))
    assert {message for _, message in messages} == {SessionNotFound().message}
    assert (await node.sessions.list(STRANGER)).sessions == ()
    if who != "deleted":
        found = await node.sessions.get(DEFAULT_TENANT, session)
        assert (found.title, found.starred, found.metadata, found.turns) == ("as it was", False, {}, 1)


async def test_cancelling_an_idle_session_is_reported(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    with pytest.raises(NothingPending):
        await node.turns.cancel(DEFAULT_TENANT, session)
    turn = await cluster.good(node, session, "hello")
    with pytest.raises(NothingPending):
        await node.turns.cancel(DEFAULT_TENANT, session)
    with pytest.raises(NothingPending):
        await node.turns.answer(DEFAULT_TENANT, session, turn.attempt, Answer(AnswerAction.SKIP))


async def test_I6_a_changed_byte_is_found(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    turns = [await cluster.good(node, session, f"{n}") for n in range(3)]
    assert (await node.sessions.read(DEFAULT_TENANT, session)).chain.damage is None
    changed = "CAST('[]' AS BLOB)" if cluster.is_sqlite else "convert_to('[]', 'UTF8')"
    await cluster.backend.execute(f"UPDATE turns SET body = {changed} WHERE id = '{turns[1].id}'")
    damage = (await node.sessions.read(DEFAULT_TENANT, session)).chain.damage
    assert damage is not None
    assert damage.detail["turn"] == turns[1].id


async def test_a_model_is_set_for_later_turns_only_if_it_is_known_and_nothing_runs(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node("gated", tools=[gate_tool(gate)])
    session = await cluster.session(node)
    with pytest.raises(ModelUnknown):
        await node.sessions.set_model(DEFAULT_TENANT, session, "nobody/knows")
    await node.sessions.set_model(DEFAULT_TENANT, session, OTHER_MODEL)
    running = await cluster.submit(node, session, "!tool gate\n!say done")
    await gate.until_reached()
    with pytest.raises(SessionBusy):
        await node.sessions.set_model(DEFAULT_TENANT, session, None)
    gate.open()
    outcome = await cluster.outcome(node, running)
    assert outcome.turn is not None
    assert outcome.turn.model == OTHER_MODEL
    await node.sessions.set_model(DEFAULT_TENANT, session, None)
    assert (await cluster.get(session)).model is None
