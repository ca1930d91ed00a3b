"""Stories about edits: nothing moves before their commit, and what they replaced is kept apart.

Their sessions are not in the clients' log: the checker holds acknowledged turns against the head's chain.
"""

from __future__ import annotations

import asyncio

from lastgood.flows.submission import Submission
from lastgood.model.attempts import After, Ask, AttemptStatus
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import user
from lastgood.model.sessions import Turn
from tests.faults.probes import Stage, probe
from tests.faults.simulation import LIMITS
from tests.faults.world import AGENT


async def say(stage: Stage, session: SessionId, text: str, after: After | None = None) -> Turn:
    ask = Ask(DEFAULT_TENANT, session, (user(text),))
    outcome = await (await stage.node.submitter.submit(Submission(ask, after=after))).outcome()
    assert outcome.turn is not None, f"the turn ended {outcome.status}: {outcome.error}"
    return outcome.turn


async def three_turns(stage: Stage) -> tuple[SessionId, list[Turn]]:
    session = (await stage.node.sessions.create(DEFAULT_TENANT, AGENT)).id
    return session, [await say(stage, session, word) for word in ("one", "two", "three")]


async def chain(stage: Stage, session: SessionId) -> list[Turn]:
    found = await stage.store.get_session(DEFAULT_TENANT, session)
    assert found is not None
    return list(await stage.store.read_turns(DEFAULT_TENANT, found.head.turn)) if found.head else []


@probe
async def an_edit_moves_nothing_before_its_commit(stage: Stage) -> None:
    """I2: the head is where it was while the edit runs, and after it was cancelled."""
    session, turns = await three_turns(stage)
    for after in (None, turns[0]):
        ask = Ask(DEFAULT_TENANT, session, (user("other\n!slow 5\n!say a b c"),))
        running = await stage.node.submitter.submit(Submission(ask, after=After(after.id if after else None)))
        assert await chain(stage, session) == turns, "a running edit has moved the head"
        outcome = await stage.node.turns.cancel(DEFAULT_TENANT, session)
        assert outcome.status is AttemptStatus.CANCELLED, f"{running.attempt} ended {outcome.status}"
        assert await chain(stage, session) == turns, "a cancelled edit has moved the head"
        assert await stage.store.count_branches(DEFAULT_TENANT, session) == 0


@probe
async def siblings_never_mix(stage: Stage) -> None:
    """I1: turns of two branches have the same numbers, and no chain shows any of the other."""
    session, turns = await three_turns(stage)
    first = await say(stage, session, "other", After(turns[0].id))
    last = await say(stage, session, "more")
    assert await chain(stage, session) == [turns[0], first, last], "the head's chain has other turns"
    old = await stage.store.read_turns(DEFAULT_TENANT, turns[2].id)
    assert list(old) == turns, "the replaced chain has other turns"


@probe
async def a_branch_dies_with_its_session(stage: Stage) -> None:
    """I15: neither the branch nor a turn of it is there after the delete."""
    session, turns = await three_turns(stage)
    await say(stage, session, "other", After(None))
    await stage.node.sessions.delete(DEFAULT_TENANT, session)
    assert await stage.store.count_branches(DEFAULT_TENANT, session) == 0, "the branch is still there"
    for turn in turns:
        found = await stage.store.find_turn(DEFAULT_TENANT, turn.id)
        assert found is None, f"turn {turn.seq} of the branch is still there"


@probe
async def a_durable_turn_that_names_its_head_runs_on_no_other(stage: Stage) -> None:
    """I20: its process dies, another turn is committed, and recovery gives it up where its client sees it."""
    session, turns = await three_turns(stage)
    ask = Ask(DEFAULT_TENANT, session, (user("mine\n!slow 1\n!say one two"),), key="key", durable=True)
    promised = await stage.node.submitter.submit(Submission(ask, after=After(turns[-1].id)))
    stage.faults.dead = True
    await asyncio.sleep(LIMITS.lease_seconds + 1)
    await stage.other.recovery.sweep()
    faster = Ask(DEFAULT_TENANT, session, (user("faster"),))
    committed = (await (await stage.other.submitter.submit(Submission(faster))).outcome()).turn
    stage.alive(stage.other)
    await asyncio.sleep(3 * LIMITS.sweep_seconds)
    assert (await chain(stage, session))[-1] == committed, "it was run after a turn that it did not name"
    last = (await stage.store.list_attempts(DEFAULT_TENANT, session))[-1]
    assert (last.turn, last.error_code) == (promised.turn, "stale_head"), f"{last.status} {last.error_code}"
