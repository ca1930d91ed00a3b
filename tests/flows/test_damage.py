"""Damage of what is stored: an error of that session alone, and never seen by a model (I6, I18)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lastgood.errors import HistoryDamaged
from lastgood.flows.session_export import SessionImport, document_pieces
from lastgood.model.attempts import AttemptStatus
from lastgood.model.ids import DEFAULT_TENANT, SessionId, TurnId
from lastgood.model.messages import user
from lastgood.model.queue import NewQueued, QueueKind
from lastgood.model.rules import LOCAL
from lastgood.model.sessions import Turn
from lastgood.wiring import Lastgood
from tests.flows.cluster import Cluster, Gate, eventually, gate_tool
from tests.flows.test_recovery import dies, next_node, until_settled
from tests.present import present

pytestmark = pytest.mark.anyio

#: A change of each column of a turn, as SQL.
TURN_CHANGES = {
    "id": "'another'",
    "tenant": "'another'",
    "session_id": "'another'",
    "seq": "9",
    "parent": "'another'",
    "segment": "'another'",
    "attempt_id": "'another'",
    "kind": "'reset'",
    "hash": "{bytes}",
    "agent_key": "'another'",
    "agent_digest": "'another'",
    "model": "'another'",
    "decision": "'{\"left_out\": 3}'",
    "input_tokens": "input_tokens + 1",
    "output_tokens": "output_tokens + 1",
    "cost": "cost + 1",
    "created_at": "created_at + 1",
    "end_user": "'another'",
    "inputs": "0",
    "body": "{bytes}",
}
STEP_CHANGES = {
    "attempt_id": "'another'",
    "n": "9",
    "kind": "'steer'",
    "input_tokens": "input_tokens + 1",
    "output_tokens": "output_tokens + 1",
    "cost": "cost + 1",
    "body": "{bytes}",
    "checksum": "{bytes}",
}
REQUEST_CHANGES = {
    "tenant": "'another'",
    "session_id": "'another'",
    "kind": "'reset'",
    "key": "'another'",
    "fingerprint": "'another'",
    "caller": "'another'",
    "end_user": "'another'",
    "model": "'another/model'",
    "agent_key": "'another'",
    "after": "'another'",
    "replaces": "'another'",
    "expects": "'another'",
    "options": "'{\"temperature\": 1}'",
    "on_leave": "'cancel'",
    "input": "{bytes}",
    "checksum": "{bytes}",
}
#: What is not read by anybody who builds a prompt, and what nothing can be found by any more once it is
#: changed: then nothing is tried again, and `lastgood db check` reports it.
REQUEST_ELSE = {"turn_id", "durable", "created_at", "closed"}


async def columns(cluster: Cluster, table: str) -> set[str]:
    sql = (
        f"SELECT name FROM pragma_table_info('{table}')"
        if cluster.is_sqlite
        else f"SELECT column_name::text FROM information_schema.columns WHERE table_name = '{table}'"
    )
    return {name for (name,) in await cluster.backend.rows(sql)}


async def change(cluster: Cluster, table: str, column: str, value: str, where: str) -> None:
    plain = "CAST('[]' AS BLOB)" if cluster.is_sqlite else "convert_to('[]', 'UTF8')"
    await cluster.backend.execute(
        f"UPDATE {table} SET {column} = {value.replace('{bytes}', plain)} WHERE {where}"
    )


async def spoken(cluster: Cluster, node: Lastgood, turns: int = 3) -> tuple[SessionId, list[Turn]]:
    session = await cluster.session(node)
    return session, [await cluster.good(node, session, f"question {n}") for n in range(turns)]


async def fresh(cluster: Cluster) -> Lastgood:
    """A node that has read nothing yet, so it has to read from the store."""
    return await cluster.node("fresh")


async def test_every_column_is_tried_below(cluster: Cluster) -> None:
    assert await columns(cluster, "turns") == set(TURN_CHANGES)
    assert await columns(cluster, "steps") == set(STEP_CHANGES)
    assert await columns(cluster, "requests") == set(REQUEST_CHANGES) | REQUEST_ELSE


@pytest.mark.parametrize("column", TURN_CHANGES)
async def test_I6_no_model_sees_a_history_with_a_changed_turn(
    cluster: Cluster, node: Lastgood, column: str
) -> None:
    session, turns = await spoken(cluster, node)
    other, _ = await spoken(cluster, node)
    await change(cluster, "turns", column, TURN_CHANGES[column], f"id = '{turns[1].id}'")
    later = await fresh(cluster)
    prompts = len(cluster.world.prompts)
    outcome = await cluster.say(later, session, "what did I ask?")
    assert (outcome.status, outcome.error and outcome.error.code) == (
        AttemptStatus.FAILED,
        "history_damaged",
    )
    assert len(cluster.world.prompts) == prompts
    assert (await cluster.get(session)).turns == 3
    # Of that session alone.
    assert len((await later.sessions.list(DEFAULT_TENANT)).sessions) == 2
    await cluster.good(later, other, "and you?")


@pytest.mark.parametrize("column", ["kind", "body", "inputs", "hash"])
async def test_I8_a_damaged_session_can_be_read_exported_forked_before_it_and_deleted(
    cluster: Cluster, node: Lastgood, column: str
) -> None:
    session, turns = await spoken(cluster, node, 4)
    await change(cluster, "turns", column, TURN_CHANGES[column], f"id = '{turns[2].id}'")
    later = await fresh(cluster)
    whole = await later.sessions.read(DEFAULT_TENANT, session)
    assert whole.chain.good == tuple(turns[:2])
    assert next(turn.seq for turn in whole.turns if turn.damage) == 3
    assert whole.chain.damage is not None
    assert whole.chain.damage.detail == {"session": session, "turn": turns[2].id, "seq": 3}
    stream = [turn async for turn in later.sessions.stream(whole.session, after=2)]
    assert isinstance(stream[0], HistoryDamaged)
    page = [turn for turn in stream if not isinstance(turn, HistoryDamaged)]
    assert [bool(turn.damage) for turn in page] == [True, column == "hash"]

    pieces = [piece async for piece in document_pieces(later.sessions, whole.session)]
    document = json.loads(b"".join(pieces))
    assert "Turn 3" in document["damage"]
    again = await SessionImport(later.deps, later.sessions).take(DEFAULT_TENANT, document, LOCAL)
    assert again.turns == 2

    fork = await later.sessions.fork(DEFAULT_TENANT, session, turns[1].id)
    await cluster.good(later, fork.id, "go on")
    assert [text for _, text in cluster.last_prompt][-3:-1] == ["question 1", turns[1].messages[-1].content]
    for refused in (turns[2].id, turns[3].id, None):
        with pytest.raises(HistoryDamaged, match="Turn 3"):
            await later.sessions.fork(DEFAULT_TENANT, session, refused)
    for damaged in (turns[2].id, turns[3].id):
        with pytest.raises(HistoryDamaged):
            await later.sessions.prompt(DEFAULT_TENANT, session, damaged)
    await later.sessions.prompt(DEFAULT_TENANT, session, turns[1].id)
    await later.sessions.delete(DEFAULT_TENANT, session)


async def test_I18_a_missing_turn_is_damage_and_no_shorter_history(cluster: Cluster, node: Lastgood) -> None:
    for missing in (0, 1, 2):
        session, turns = await spoken(cluster, node)
        await cluster.backend.execute(f"DELETE FROM turns WHERE id = '{turns[missing].id}'")
        later = await cluster.node(f"fresh {missing}")
        outcome = await cluster.say(later, session, "what did I ask?")
        assert outcome.error is not None
        assert outcome.error.code == "history_damaged"
        whole = await later.sessions.read(DEFAULT_TENANT, session)
        # A chain is found by its end; without the last turn, earlier ones are found by their ids alone.
        assert whole.chain.good == (tuple(turns[:missing]) if missing < 2 else ())
        if missing:
            await later.sessions.fork(DEFAULT_TENANT, session, turns[missing - 1].id)


@pytest.mark.parametrize(
    ("column", "value"),
    [("seq", "2"), ("head_hash", "{bytes}"), ("head", "(SELECT id FROM turns WHERE seq = 1)")],
)
async def test_I18_a_changed_head_is_damage(
    cluster: Cluster, node: Lastgood, column: str, value: str
) -> None:
    session, _ = await spoken(cluster, node)
    await change(cluster, "sessions", column, value, f"id = '{session}'")
    outcome = await cluster.say(await fresh(cluster), session, "what did I ask?")
    assert outcome.error is not None
    assert outcome.error.code == "history_damaged"


async def test_I18_turns_that_follow_one_another_in_a_circle_are_damage(
    cluster: Cluster, node: Lastgood
) -> None:
    session, turns = await spoken(cluster, node)
    fork = (await node.sessions.fork(DEFAULT_TENANT, session, turns[0].id)).id
    first, last = [await cluster.good(node, fork, f"again {n}") for n in range(2)]
    await change(cluster, "turns", "parent", f"'{last.id}'", f"id = '{first.id}'")
    later = await fresh(cluster)
    outcome = await cluster.say(later, fork, "what did I ask?")
    assert outcome.error is not None
    assert outcome.error.code == "history_damaged"
    await later.sessions.fork(DEFAULT_TENANT, fork, turns[0].id)


async def test_a_replay_does_not_answer_with_a_damaged_turn(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    turn = await cluster.good(node, session, "hello", key="key")
    await change(cluster, "turns", "kind", "'append'", f"id = '{turn.id}'")
    later = await fresh(cluster)
    with pytest.raises(HistoryDamaged):
        await cluster.say(later, session, "hello", key="key")


# -- what recovery reads ------------------------------------------------------------------

STORY = '!tool ledger-repeat {"text": "a"}\n!tool ledger-repeat {"text": "b"}\n!say done'


async def durable(cluster: Cluster) -> tuple[SessionId, str, str]:
    """A durable turn whose node died after a finished step."""
    death = await dies(cluster, STORY, durable=True)
    return death.session, death.turn.turn, present(death.turn.attempt)


@pytest.mark.parametrize("column", REQUEST_CHANGES)
async def test_I18_a_durable_turn_with_a_changed_request_fails_visibly(cluster: Cluster, column: str) -> None:
    session, turn, _ = await durable(cluster)
    await change(cluster, "requests", column, REQUEST_CHANGES[column], f"turn_id = '{turn}'")
    prompts = len(cluster.world.prompts)
    node = await next_node(cluster)
    if column in ("tenant", "session_id"):
        # Whose it is cannot be told any more, so nobody can be told; the check reports it.
        await until_settled(cluster, session, 1)
        await node.recovery.retry_durable()
    else:
        attempts = await until_settled(cluster, session, 2)
        assert [one.status for one in attempts] == [AttemptStatus.INTERRUPTED, AttemptStatus.FAILED]
        assert attempts[-1].error_code == "history_damaged"
        await node.recovery.retry_durable()
        assert len(await cluster.attempts(session)) == 2, "it is not tried for ever"
    assert len(cluster.world.prompts) == prompts
    other = await cluster.session(node)
    await cluster.good(node, other, "hello")


@pytest.mark.parametrize("column", STEP_CHANGES)
async def test_I18_a_durable_turn_with_a_changed_step_does_not_show_it(cluster: Cluster, column: str) -> None:
    session, _, attempt = await durable(cluster)
    first = f"attempt_id = '{attempt}' AND n = 1"
    await change(cluster, "steps", column, STEP_CHANGES[column], first)
    prompts = len(cluster.world.prompts)
    await next_node(cluster)
    attempts = await until_settled(cluster, session, 2)
    assert attempts[-1].error_code == "history_damaged"
    assert len(cluster.world.prompts) == prompts


@pytest.mark.parametrize("column", ["input", "model", "agent_key", "key", "end_user", "checksum"])
async def test_I18_a_changed_entry_of_the_queue_is_parked_and_says_why(cluster: Cluster, column: str) -> None:
    gate = Gate()
    node = await cluster.node("gated", tools=[gate_tool(gate)])
    session = await cluster.session(node)
    running = await cluster.submit(node, session, "!tool gate {}\n!say done")
    await gate.until_reached()
    for number in range(2):
        new = NewQueued(
            DEFAULT_TENANT, session, TurnId(f"later {number}"), QueueKind.FOLLOWUP, (user(f"later {number}"),)
        )
        await node.queue.put(new)
    value = "'another'" if column not in ("input", "checksum") else "{bytes}"
    await change(cluster, "queued", column, value, "turn_id = 'later 0'")
    gate.open()
    await cluster.outcome(node, running)

    async def parked() -> Any:
        queue = await cluster.backend.store.read_queue(DEFAULT_TENANT, session)
        return [item.parked for item in queue if item.parked]

    (why,) = await eventually(parked)
    assert "does not match its checksum" in why

    async def went_on() -> bool:
        return (await cluster.get(session)).turns == 2

    await eventually(went_on)
    assert "later 0" not in str(cluster.world.prompts)
