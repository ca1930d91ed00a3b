"""Edits through the flows: nothing moves before success, and what was replaced is still there (I2, I20)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from lastgood.errors import Conflict, LastgoodError, SessionBusy, StaleHead, TurnNotFound
from lastgood.flows.submit import Submission
from lastgood.flows.turn_handle import TurnHandle
from lastgood.flows.turn_outcome import Outcome
from lastgood.model.agents import OnUnknown
from lastgood.model.attempts import After, AttemptStatus, OnLeave
from lastgood.model.events import EventKind
from lastgood.model.ids import DEFAULT_TENANT, SessionId, TurnId
from lastgood.model.sessions import Branch, Turn, TurnKind
from lastgood.wiring import Lastgood
from tests.flows.house import LIMITS, Gate, House, eventually, gate_tool
from tests.flows.test_recovering import buried, dies_at, next_node, recover, story, until_settled
from tests.present import present

pytestmark = pytest.mark.anyio

#: On PostgreSQL a dead node's session is free when its lease has ended.
MORTAL = replace(LIMITS, lease_seconds=2.0)


async def three(house: House, node: Lastgood) -> tuple[SessionId, list[Turn]]:
    session = await house.session(node)
    return session, [await house.good(node, session, word) for word in ("one", "two", "three")]


def said(*words: str) -> list[tuple[str, str]]:
    return [line for word in words for line in (("user", word), ("assistant", f"You said: {word}"))]


async def submit(
    house: House, node: Lastgood, session: SessionId, after: Turn | None, *texts: str, **fields: Any
) -> TurnHandle:
    asked = house.asked(session, *texts, **fields)
    return await node.submitter.submit(Submission(asked, after=After(after.id if after else None)))


async def edit(
    house: House, node: Lastgood, session: SessionId, after: Turn | None, *texts: str, **fields: Any
) -> Outcome:
    return await house.outcome(node, await submit(house, node, session, after, *texts, **fields))


async def branches(house: House, session: SessionId) -> tuple[Branch, ...]:
    return await house.backend.store.list_branches(DEFAULT_TENANT, session, limit=100)


# -- good edits -------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_I1_an_edit_sees_its_base_and_nothing_after_it(house: House, node: Lastgood, kept: int) -> None:
    session, turns = await three(house, node)
    outcome = await edit(house, node, session, turns[kept - 1] if kept else None, "other")
    assert outcome.turn is not None
    words = ["one", "two", "three"][:kept]
    assert house.last_prompt == [*said(*words), ("user", "other")]
    assert list(await house.turns(session)) == [*turns[:kept], outcome.turn]
    await house.good(node, session, "next")
    assert house.last_prompt == [*said(*words, "other"), ("user", "next")]
    (branch,) = await branches(house, session)
    assert (branch.head, branch.replaced_by) == (turns[-1].id, outcome.turn.id)


async def test_an_edit_of_an_edit_goes_on_from_the_first_one(house: House, node: Lastgood) -> None:
    session, turns = await three(house, node)
    first = (await edit(house, node, session, turns[0], "a")).turn
    more = await house.good(node, session, "b")
    await edit(house, node, session, first, "c")
    assert house.last_prompt == [*said("one", "a"), ("user", "c")]
    await edit(house, node, session, None, "d")
    assert house.last_prompt == [("user", "d")]
    heads = [branch.head for branch in await branches(house, session)]
    assert heads[:2] == [turns[-1].id, more.id]
    assert len(heads) == 3


async def test_an_edit_after_a_reset_may_go_on_from_the_reset_or_from_before_it(
    house: House, node: Lastgood
) -> None:
    session, turns = await three(house, node)
    reset = await house.good(node, session, kind=TurnKind.RESET, messages=())
    await house.good(node, session, "four")
    await edit(house, node, session, reset, "other")
    assert house.last_prompt == [("user", "other")]
    await edit(house, node, session, turns[0], "earlier")
    assert house.last_prompt == [*said("one"), ("user", "earlier")]


async def test_a_turn_of_a_branch_can_be_read_and_forked(house: House, node: Lastgood) -> None:
    session, turns = await three(house, node)
    await edit(house, node, session, None, "other")
    fork = await node.sessions.fork(DEFAULT_TENANT, session, turns[1].id)
    await house.good(node, fork.id, "on the fork")
    assert house.last_prompt == [*said("one", "two"), ("user", "on the fork")]
    found = await node.sessions.turn_of(await house.get(session), turns[2].id)
    assert found == turns[2]
    turn, prompt = await node.sessions.prompt(DEFAULT_TENANT, session, turns[2].id)
    assert [message.content for message in prompt.messages][-1] == "three"
    assert turn == turns[2]
    # The fork inherits what it started from, and not its siblings.
    with pytest.raises(TurnNotFound):
        await node.sessions.turn_of(await house.get(fork.id), turns[2].id)


async def test_after_the_head_is_an_append(house: House, node: Lastgood) -> None:
    session, turns = await three(house, node)
    outcome = await edit(house, node, session, turns[2], "four")
    assert outcome.turn is not None
    assert (outcome.turn.parent, outcome.turn.seq) == (turns[2].id, 4)
    assert await branches(house, session) == ()
    empty = await house.session(node)
    assert (await edit(house, node, empty, None, "first")).status is AttemptStatus.COMMITTED


async def test_the_event_of_a_committed_edit_says_what_it_replaces(house: House, node: Lastgood) -> None:
    session, turns = await three(house, node)
    await edit(house, node, session, turns[0], "other")
    events = await house.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    (*before, last) = [event.data for event in events if event.kind is EventKind.TURN_COMMITTED]
    assert (last["replaces"], last["after"], last["seq"]) == (turns[2].id, turns[0].id, 2)
    assert not any("replaces" in data for data in before)


# -- refusals ---------------------------------------------------------------------------


async def test_I13_an_edit_of_what_is_not_there_is_refused_and_asks_no_model(
    house: House, node: Lastgood
) -> None:
    session, turns = await three(house, node)
    other, theirs = await three(house, node)
    await edit(house, node, session, turns[0], "other")
    prompts = len(house.world.prompts)
    for after in (theirs[0], turns[2]):  # of another session; of a branch
        with pytest.raises(TurnNotFound):
            await submit(house, node, session, after, "x")
    with pytest.raises(TurnNotFound):
        await node.submitter.submit(Submission(house.asked(session, "x"), after=After(TurnId("unknown"))))
    with pytest.raises(StaleHead):
        await submit(house, node, session, turns[0], "x", expected_head=turns[2].id)
    assert len(house.world.prompts) == prompts
    assert len(await branches(house, session)) == 1
    assert len(await branches(house, other)) == 0


async def test_of_an_edit_and_an_append_at_once_exactly_one_wins(house: House, node: Lastgood) -> None:
    for number in range(5):
        session, turns = await three(house, node)

        async def append(session: SessionId = session, turns: list[Turn] = turns) -> Outcome:
            return await house.say(node, session, "append", expected_head=turns[2].id)

        both = edit(house, node, session, turns[0], f"edit {number}"), append()
        found = await asyncio.gather(*both, return_exceptions=True)
        good = [one for one in found if isinstance(one, Outcome)]
        assert len(good) == 1, found
        assert good[0].turn is not None
        assert all(isinstance(one, Outcome | SessionBusy | StaleHead) for one in found)
        assert (await house.turns(session))[-1] == good[0].turn


# -- edits that come to nothing ---------------------------------------------------------


@pytest.mark.parametrize("how", ["fails", "is cancelled", "is superseded", "dies", "is stopped"])
async def test_I2_an_edit_that_comes_to_nothing_leaves_everything_as_it_was(house: House, how: str) -> None:
    gate = Gate()
    node = await house.node("first", tools=[gate_tool(gate)], limits=MORTAL)
    session, turns = await three(house, node)
    before = await house.get(session)
    text = "x\n!fail during" if how == "fails" else "x\n!tool gate {}"
    leaves = OnLeave.ORPHAN if how == "is superseded" else OnLeave.CONTINUE
    submitted = await submit(house, node, session, turns[0], text, on_leave=leaves)
    if how != "fails":
        await gate.until_reached()
        assert (await house.get(session)).head == before.head
    if how == "is cancelled":
        await node.turns.cancel(DEFAULT_TENANT, session)
    elif how == "is superseded":
        await submitted.leave()
    elif how == "dies":
        await house.kill(node)
        node = await next_node(house)
    elif how == "is stopped":
        await house.stop(node)
        node = await next_node(house)
    else:
        await house.outcome(node, submitted)
    if how != "is superseded":
        await house.until_free(session)
        after = await house.get(session)
        assert (after.head, after.usage, after.title) == (before.head, before.usage, before.title)
    await house.good(node, session, "next")
    assert house.last_prompt == [*said("one", "two", "three"), ("user", "next")]
    assert (await house.turns(session))[:3] == tuple(turns)
    assert await branches(house, session) == ()


# -- tried again ------------------------------------------------------------------------


async def dying_edit(house: House) -> tuple[SessionId, list[Turn], TurnHandle]:
    """A promised edit whose node dies after its first tool call was finished."""
    node = await house.node("dead", limits=MORTAL)
    session, turns = await three(house, node)
    died = dies_at(house, node, "b")
    fields = {"key": "key", "durable": True}
    submitted = await submit(house, node, session, turns[0], story(OnUnknown.REPEAT), **fields)
    await buried(house, node, died)
    return session, turns, submitted


async def test_I20_a_promised_edit_is_tried_again_after_a_death_and_replaces_what_it_meant(
    house: House,
) -> None:
    session, turns, submitted = await dying_edit(house)
    await next_node(house)
    *_, first, second = await until_settled(house, session, 5)
    assert (first.status, second.status) == (AttemptStatus.INTERRUPTED, AttemptStatus.COMMITTED)
    assert (second.base, second.head) == (turns[0].id, turns[2].id)
    assert second.continues == first.id
    chain = await house.turns(session)
    assert [turn.id for turn in chain] == [turns[0].id, submitted.turn]
    (branch,) = await branches(house, session)
    assert (branch.head, branch.replaced_by) == (turns[2].id, submitted.turn)


async def test_I20_a_promised_edit_whose_head_has_moved_ends_visibly_as_stale(house: House) -> None:
    session, turns, submitted = await dying_edit(house)
    node = await next_node(house, alive=False)

    async def interrupted() -> bool:
        await node.recovery.at_start()
        await node.recovery.sweep()
        return (await house.get(session)).attempt is None

    await eventually(interrupted)
    other = await house.good(node, session, "faster")
    prompts = len(house.world.prompts)
    for _ in range(2):
        await recover(node)
    *_, first, _, last = await house.attempts(session)
    assert (first.status, last.status) == (AttemptStatus.INTERRUPTED, AttemptStatus.FAILED)
    assert (last.turn, last.error_code) == (submitted.turn, "stale_head")
    assert len(house.world.prompts) == prompts
    assert (await house.turns(session))[-1] == other
    assert await branches(house, session) == ()
    # Whoever sends it again under its key is told the same.
    with pytest.raises(StaleHead):
        await submit(house, node, session, turns[0], story(OnUnknown.REPEAT), key="key", durable=True)


async def test_I20_a_key_of_a_failed_edit_tries_the_same_edit_again(house: House, node: Lastgood) -> None:
    session, turns = await three(house, node)
    failed = await edit(house, node, session, turns[0], "x\n!fail during 1", key="key")
    assert failed.status is AttemptStatus.FAILED
    again = await edit(house, node, session, turns[0], "x\n!fail during 1", key="key")
    assert again.turn is not None
    tries = await house.attempts(session)
    assert tries[-1].turn == tries[-2].turn == again.turn.id
    replayed = await submit(house, node, session, turns[0], "x\n!fail during 1", key="key")
    assert (replayed.replayed, replayed.turn) == (True, again.turn.id)
    assert len(await branches(house, session)) == 1


async def test_a_failed_edit_is_continued_as_an_edit(house: House, node: Lastgood) -> None:
    session, turns = await three(house, node)
    failed = await edit(house, node, session, turns[0], 'x\n!tool echo {"text": "a"}\n!fail during 1')
    assert failed.status is AttemptStatus.FAILED
    good = await house.outcome(
        node, await node.turns.continue_from(DEFAULT_TENANT, session, present(failed.attempt))
    )
    assert good.turn is not None
    assert good.turn.parent == turns[0].id
    assert [turn.id for turn in await house.turns(session)] == [turns[0].id, good.turn.id]
    assert [branch.head for branch in await branches(house, session)] == [turns[2].id]


async def test_a_failed_edit_is_not_continued_once_the_head_has_moved(house: House, node: Lastgood) -> None:
    session, turns = await three(house, node)
    failed = await edit(house, node, session, turns[0], "x\n!fail during 1")
    await house.good(node, session, "four")
    with pytest.raises(Conflict):
        await node.turns.continue_from(DEFAULT_TENANT, session, present(failed.attempt))
    # As many turns as at its begin, but other ones.
    other, turns = await three(house, node)
    failed = await edit(house, node, other, turns[1], "x\n!fail during 1")
    await edit(house, node, other, turns[1], "another third")
    with pytest.raises(LastgoodError):
        await node.turns.continue_from(DEFAULT_TENANT, other, present(failed.attempt))
    assert len(await house.turns(other)) == 3
