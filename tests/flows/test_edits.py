"""Edits through the flows: nothing moves before success, and what was replaced is still there (I2, I20)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lastgood.errors import Conflict, LastgoodError, SessionBusy, StaleHead, TurnNotFound
from lastgood.flows.submission import Submission
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.agents import OnUnknown
from lastgood.model.attempts import After, AttemptStatus, Edit, OnLeave
from lastgood.model.events import AttemptCommitted
from lastgood.model.ids import DEFAULT_TENANT, SessionId, TurnId
from lastgood.model.sessions import Branch, Turn, TurnKind
from lastgood.wiring import Lastgood
from tests.flows.cluster import Cluster, Gate, eventually, gate_tool
from tests.flows.test_recovery import buried, dies_at, next_node, recover, story, until_settled
from tests.present import present

pytestmark = pytest.mark.anyio


async def three(cluster: Cluster, node: Lastgood) -> tuple[SessionId, list[Turn]]:
    session = await cluster.session(node)
    return session, [await cluster.good(node, session, word) for word in ("one", "two", "three")]


def said(*words: str) -> list[tuple[str, str]]:
    return [line for word in words for line in (("user", word), ("assistant", f"You said: {word}"))]


async def submit(
    cluster: Cluster, node: Lastgood, session: SessionId, after: Turn | None, *texts: str, **fields: Any
) -> TurnHandle:
    asked = cluster.asked(session, *texts, **fields)
    return await node.submitter.submit(Submission(asked, after=After(after.id if after else None)))


async def edit(
    cluster: Cluster, node: Lastgood, session: SessionId, after: Turn | None, *texts: str, **fields: Any
) -> Outcome:
    return await cluster.outcome(node, await submit(cluster, node, session, after, *texts, **fields))


async def branches(cluster: Cluster, session: SessionId) -> tuple[Branch, ...]:
    return await cluster.backend.store.list_branches(DEFAULT_TENANT, session, limit=100)


# -- good edits -------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_I1_an_edit_sees_its_base_and_nothing_after_it(
    cluster: Cluster, node: Lastgood, kept: int
) -> None:
    session, turns = await three(cluster, node)
    outcome = await edit(cluster, node, session, turns[kept - 1] if kept else None, "other")
    assert outcome.turn is not None
    words = ["one", "two", "three"][:kept]
    assert cluster.last_prompt == [*said(*words), ("user", "other")]
    assert list(await cluster.turns(session)) == [*turns[:kept], outcome.turn]
    await cluster.good(node, session, "next")
    assert cluster.last_prompt == [*said(*words, "other"), ("user", "next")]
    (branch,) = await branches(cluster, session)
    assert (branch.head, branch.replaced_by) == (turns[-1].id, outcome.turn.id)


async def test_an_edit_of_an_edit_continues_from_the_first_one(cluster: Cluster, node: Lastgood) -> None:
    session, turns = await three(cluster, node)
    first = (await edit(cluster, node, session, turns[0], "a")).turn
    more = await cluster.good(node, session, "b")
    await edit(cluster, node, session, first, "c")
    assert cluster.last_prompt == [*said("one", "a"), ("user", "c")]
    await edit(cluster, node, session, None, "d")
    assert cluster.last_prompt == [("user", "d")]
    heads = [branch.head for branch in await branches(cluster, session)]
    assert heads[:2] == [turns[-1].id, more.id]
    assert len(heads) == 3


async def test_an_edit_after_a_reset_may_continue_from_the_reset_or_from_before_it(
    cluster: Cluster, node: Lastgood
) -> None:
    session, turns = await three(cluster, node)
    reset = await cluster.good(node, session, kind=TurnKind.RESET, messages=())
    await cluster.good(node, session, "four")
    await edit(cluster, node, session, reset, "other")
    assert cluster.last_prompt == [("user", "other")]
    await edit(cluster, node, session, turns[0], "earlier")
    assert cluster.last_prompt == [*said("one"), ("user", "earlier")]


async def test_a_turn_of_a_branch_can_be_read_and_forked(cluster: Cluster, node: Lastgood) -> None:
    session, turns = await three(cluster, node)
    await edit(cluster, node, session, None, "other")
    fork = await node.sessions.fork(DEFAULT_TENANT, session, turns[1].id)
    await cluster.good(node, fork.id, "on the fork")
    assert cluster.last_prompt == [*said("one", "two"), ("user", "on the fork")]
    found = await node.sessions.turn_of(await cluster.get(session), turns[2].id)
    assert found == turns[2]
    turn, prompt = await node.sessions.prompt(DEFAULT_TENANT, session, turns[2].id)
    assert [message.content for message in prompt.messages][-1] == "three"
    assert turn == turns[2]
    # The fork inherits what it started from, and not its siblings.
    with pytest.raises(TurnNotFound):
        await node.sessions.turn_of(await cluster.get(fork.id), turns[2].id)


async def test_after_the_head_is_an_append(cluster: Cluster, node: Lastgood) -> None:
    session, turns = await three(cluster, node)
    outcome = await edit(cluster, node, session, turns[2], "four")
    assert outcome.turn is not None
    assert (outcome.turn.parent, outcome.turn.seq) == (turns[2].id, 4)
    assert await branches(cluster, session) == ()
    empty = await cluster.session(node)
    assert (await edit(cluster, node, empty, None, "first")).status is AttemptStatus.COMMITTED


async def test_the_event_of_a_committed_edit_says_what_it_replaces(cluster: Cluster, node: Lastgood) -> None:
    session, turns = await three(cluster, node)
    await edit(cluster, node, session, turns[0], "other")
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    (*before, last) = [event.data for event in events if isinstance(event.data, AttemptCommitted)]
    assert (last.edit, last.seq) == (Edit(turns[0].id, turns[2].id), 2)
    assert not any(data.edit for data in before)


# -- refusals ---------------------------------------------------------------------------


async def test_I13_an_edit_of_what_is_not_there_is_refused_and_asks_no_model(
    cluster: Cluster, node: Lastgood
) -> None:
    session, turns = await three(cluster, node)
    other, theirs = await three(cluster, node)
    await edit(cluster, node, session, turns[0], "other")
    prompts = len(cluster.world.prompts)
    for after in (theirs[0], turns[2]):  # of another session; of a branch
        with pytest.raises(TurnNotFound):
            await submit(cluster, node, session, after, "x")
    with pytest.raises(TurnNotFound):
        await node.submitter.submit(Submission(cluster.asked(session, "x"), after=After(TurnId("unknown"))))
    with pytest.raises(StaleHead):
        await submit(cluster, node, session, turns[0], "x", expected_head=turns[2].id)
    assert len(cluster.world.prompts) == prompts
    assert len(await branches(cluster, session)) == 1
    assert len(await branches(cluster, other)) == 0


async def test_of_an_edit_and_an_append_at_once_exactly_one_wins(cluster: Cluster, node: Lastgood) -> None:
    for number in range(5):
        session, turns = await three(cluster, node)

        async def append(session: SessionId = session, turns: list[Turn] = turns) -> Outcome:
            return await cluster.say(node, session, "append", expected_head=turns[2].id)

        both = edit(cluster, node, session, turns[0], f"edit {number}"), append()
        found = await asyncio.gather(*both, return_exceptions=True)
        good = [one for one in found if isinstance(one, Outcome)]
        assert len(good) == 1, found
        assert good[0].turn is not None
        assert all(isinstance(one, Outcome | SessionBusy | StaleHead) for one in found)
        assert (await cluster.turns(session))[-1] == good[0].turn


# -- edits that come to nothing ---------------------------------------------------------


@pytest.mark.parametrize("how", ["fails", "is cancelled", "is superseded", "dies", "is stopped"])
async def test_I2_an_edit_that_comes_to_nothing_leaves_everything_as_it_was(
    cluster: Cluster, how: str
) -> None:
    gate = Gate()
    node = await cluster.node("first", tools=[gate_tool(gate)])
    session, turns = await three(cluster, node)
    before = await cluster.get(session)
    text = "x\n!fail during" if how == "fails" else "x\n!tool gate {}"
    leaves = OnLeave.ORPHAN if how == "is superseded" else OnLeave.CONTINUE
    submitted = await submit(cluster, node, session, turns[0], text, on_leave=leaves)
    if how != "fails":
        await gate.until_reached()
        assert (await cluster.get(session)).head == before.head
    if how == "is cancelled":
        await node.turns.cancel(DEFAULT_TENANT, session)
    elif how == "is superseded":
        await submitted.leave()
    elif how == "dies":
        await cluster.kill(node, lease_ends=True)
        node = await next_node(cluster)
    elif how == "is stopped":
        await cluster.stop(node)
        node = await next_node(cluster)
    else:
        await cluster.outcome(node, submitted)
    if how != "is superseded":
        await cluster.until_free(session)
        after = await cluster.get(session)
        assert (after.head, after.usage, after.title) == (before.head, before.usage, before.title)
    await cluster.good(node, session, "next")
    assert cluster.last_prompt == [*said("one", "two", "three"), ("user", "next")]
    assert (await cluster.turns(session))[:3] == tuple(turns)
    assert await branches(cluster, session) == ()


# -- tried again ------------------------------------------------------------------------


async def dying_edit(cluster: Cluster) -> tuple[SessionId, list[Turn], TurnHandle]:
    """A promised edit whose node dies after its first tool call was finished."""
    node = await cluster.node("dead")
    session, turns = await three(cluster, node)
    died = dies_at(cluster, node, "b")
    fields = {"key": "key", "durable": True}
    submitted = await submit(cluster, node, session, turns[0], story(OnUnknown.REPEAT), **fields)
    await buried(cluster, node, died)
    return session, turns, submitted


async def test_I20_a_durable_edit_is_tried_again_after_a_death_and_replaces_what_it_meant(
    cluster: Cluster,
) -> None:
    session, turns, submitted = await dying_edit(cluster)
    await next_node(cluster)
    *_, first, second = await until_settled(cluster, session, 5)
    assert (first.status, second.status) == (AttemptStatus.INTERRUPTED, AttemptStatus.COMMITTED)
    assert (second.base, second.head) == (turns[0].id, turns[2].id)
    assert second.continues == first.id
    chain = await cluster.turns(session)
    assert [turn.id for turn in chain] == [turns[0].id, submitted.turn]
    (branch,) = await branches(cluster, session)
    assert (branch.head, branch.replaced_by) == (turns[2].id, submitted.turn)


async def overtaken(cluster: Cluster, session: SessionId, turn: TurnId) -> Lastgood:
    """Another turn is committed after the death; recovery must then give up the promised one, visibly."""
    node = await next_node(cluster, alive=False)

    async def interrupted() -> bool:
        await node.recovery.at_start()
        await node.recovery.sweep()
        return (await cluster.get(session)).attempt is None

    await eventually(interrupted)
    other = await cluster.good(node, session, "faster")
    prompts = len(cluster.world.prompts)
    for _ in range(2):
        await recover(node)
    *_, first, _, last = await cluster.attempts(session)
    assert (first.status, last.status) == (AttemptStatus.INTERRUPTED, AttemptStatus.FAILED)
    assert (last.turn, last.error_code) == (turn, "stale_head")
    assert len(cluster.world.prompts) == prompts
    assert (await cluster.turns(session))[-1] == other
    assert await branches(cluster, session) == ()
    return node


async def test_I20_a_durable_edit_whose_head_has_moved_ends_visibly_as_stale(cluster: Cluster) -> None:
    session, turns, submitted = await dying_edit(cluster)
    node = await overtaken(cluster, session, submitted.turn)
    # Whoever sends it again under its key is told the same.
    with pytest.raises(StaleHead):
        await submit(cluster, node, session, turns[0], story(OnUnknown.REPEAT), key="key", durable=True)


@pytest.mark.parametrize("names", ["after", "expected_head", "is_first"])
async def test_I20_a_durable_turn_that_names_its_head_ends_visibly_as_stale_if_that_has_moved(
    cluster: Cluster, names: str
) -> None:
    """Its client has not seen the other turn: run after it, the turn would go on from something else."""
    node = await cluster.node("dead")
    session = await cluster.session(node)
    head = None if names == "is_first" else (await cluster.good(node, session, "one")).id
    conditions: dict[str, dict[str, Any]] = {
        "expected_head": {"expected_head": head},
        "is_first": {"is_first": True},
    }
    died = dies_at(cluster, node, "b")
    fields = conditions.get(names, {}) | {"key": "key", "durable": True}
    asked = cluster.asked(session, story(OnUnknown.REPEAT), **fields)
    after = After(head) if names == "after" else None
    submitted = await node.submitter.submit(Submission(asked, after=after))
    await buried(cluster, node, died)
    await overtaken(cluster, session, submitted.turn)


async def test_I20_a_key_of_a_failed_edit_tries_the_same_edit_again(cluster: Cluster, node: Lastgood) -> None:
    session, turns = await three(cluster, node)
    failed = await edit(cluster, node, session, turns[0], "x\n!fail during 1", key="key")
    assert failed.status is AttemptStatus.FAILED
    again = await edit(cluster, node, session, turns[0], "x\n!fail during 1", key="key")
    assert again.turn is not None
    tries = await cluster.attempts(session)
    assert tries[-1].turn == tries[-2].turn == again.turn.id
    replayed = await submit(cluster, node, session, turns[0], "x\n!fail during 1", key="key")
    assert (replayed.replayed, replayed.turn) == (True, again.turn.id)
    assert len(await branches(cluster, session)) == 1


async def test_a_failed_edit_is_continued_as_an_edit(cluster: Cluster, node: Lastgood) -> None:
    session, turns = await three(cluster, node)
    failed = await edit(cluster, node, session, turns[0], 'x\n!tool echo {"text": "a"}\n!fail during 1')
    assert failed.status is AttemptStatus.FAILED
    good = await cluster.outcome(
        node, await node.turns.continue_from(DEFAULT_TENANT, session, present(failed.attempt))
    )
    assert good.turn is not None
    assert good.turn.parent == turns[0].id
    assert [turn.id for turn in await cluster.turns(session)] == [turns[0].id, good.turn.id]
    assert [branch.head for branch in await branches(cluster, session)] == [turns[2].id]


async def test_a_failed_edit_is_not_continued_once_the_head_has_moved(
    cluster: Cluster, node: Lastgood
) -> None:
    session, turns = await three(cluster, node)
    failed = await edit(cluster, node, session, turns[0], "x\n!fail during 1")
    await cluster.good(node, session, "four")
    with pytest.raises(Conflict):
        await node.turns.continue_from(DEFAULT_TENANT, session, present(failed.attempt))
    # As many turns as at its begin, but other ones.
    other, turns = await three(cluster, node)
    failed = await edit(cluster, node, other, turns[1], "x\n!fail during 1")
    await edit(cluster, node, other, turns[1], "another third")
    with pytest.raises(LastgoodError):
        await node.turns.continue_from(DEFAULT_TENANT, other, present(failed.attempt))
    assert len(await cluster.turns(other)) == 3
