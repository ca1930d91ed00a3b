"""The submission pipeline: a conversation that moves meanwhile, and a rate limit that is reached."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from lastgood.errors import LastgoodError, SessionBusy, StaleHead, TooManyRequests
from lastgood.flows.retries import MOST_TRIES
from lastgood.flows.submission import NOT_LOCATED, Conversation, Submission
from lastgood.model.attempts import Ask, AttemptStatus, OnLeave
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.messages import user
from lastgood.model.sessions import TurnKind
from lastgood.wiring import Lastgood
from tests.faults.faults import Mode
from tests.flows.cluster import Cluster, Gate, gate_tool

pytestmark = pytest.mark.anyio

NAME = "chat"


def submission(text: str, **fields: Any) -> Submission:
    ask = Ask(DEFAULT_TENANT, NOT_LOCATED, (), agent_key="builtin/scripted", fingerprint=text, **fields)
    return Submission(ask, conversation=Conversation(NAME, (user(text),), reconciles=True))


def reached() -> NoReturn:
    raise TooManyRequests()


async def overtaking(cluster: Cluster, node: Lastgood, times: int) -> list[int]:
    """Another node commits a turn before each of the next begins of this one; the list counts them."""
    other = await cluster.node("other")
    session = await node.deps.store.find_conversation(DEFAULT_TENANT, NAME)
    assert session is not None
    overtaken: list[int] = []

    async def jitter(point: str) -> Mode | None:
        if point == "store.begin_if_free":
            overtaken.append(len(overtaken) + 1)
            if len(overtaken) <= times:
                await cluster.good(other, session.id, "meanwhile", kind=TurnKind.APPEND)
        return None

    cluster.faults(node).jitter = jitter
    return overtaken


async def test_a_submission_that_is_overtaken_selects_its_input_again(
    cluster: Cluster, node: Lastgood
) -> None:
    await cluster.outcome(node, await node.submitter.submit(submission("first")))
    overtaken = await overtaking(cluster, node, 1)
    outcome = await cluster.outcome(node, await node.submitter.submit(submission("first", key="another")))
    assert (outcome.status, len(overtaken)) == (AttemptStatus.COMMITTED, 2)


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (None, SessionBusy, f"Could not start the turn: the session stayed busy through {MOST_TRIES} tries"),
        ("key", StaleHead, None),
    ],
)
async def test_a_submission_that_is_overtaken_each_time_gives_up_with_an_error(
    cluster: Cluster, node: Lastgood, key: str | None, error: type[LastgoodError], words: str | None
) -> None:
    await cluster.outcome(node, await node.submitter.submit(submission("first")))
    overtaken = await overtaking(cluster, node, 100)
    with pytest.raises(error, match=words):
        await node.submitter.submit(submission("second", key=key))
    assert len(overtaken) == MOST_TRIES


async def test_a_rate_limit_does_not_keep_a_client_from_the_turn_it_began(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    text = "!tool gate {}\n!say done"
    began = await node.submitter.submit(submission(text, key="key"))
    await gate.until_reached()
    attached = await node.submitter.submit(submission(text, key="key"), reached)
    assert (attached.attempt, attached.replayed) == (began.attempt, False)
    assert not attached.call_when_ended(lambda: None), "it began nothing"
    gate.open()
    assert (await cluster.outcome(node, attached)).status is AttemptStatus.COMMITTED
    replayed = await node.submitter.submit(submission(text, key="key"), reached)
    assert (replayed.attempt, replayed.replayed) == (began.attempt, True)


@pytest.mark.parametrize("key", [None, "key"])
async def test_a_rate_limit_that_is_reached_begins_nothing_and_makes_no_session(
    cluster: Cluster, node: Lastgood, key: str | None
) -> None:
    with pytest.raises(TooManyRequests):
        await node.submitter.submit(submission("first", key=key), reached)
    assert await node.deps.store.find_conversation(DEFAULT_TENANT, NAME) is None


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_disconnect_that_is_noticed_late_does_not_keep_a_conversation_busy(
    cluster: Cluster, leaves: bool
) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    first = await node.submitter.submit(submission("!tool gate {}", on_leave=OnLeave.ORPHAN))
    await gate.until_reached()

    async def jitter(point: str) -> Mode | None:
        if point == "store.read_request" and leaves:  # the second has found the session busy
            cluster.faults(node).jitter = None
            await first.leave()
        return None

    cluster.faults(node).jitter = jitter
    if not leaves:
        with pytest.raises(SessionBusy, match="is running"):
            await node.submitter.submit(submission("second"))
        gate.open()
        return
    outcome = await cluster.outcome(node, await node.submitter.submit(submission("second")))
    assert outcome.status is AttemptStatus.COMMITTED
    assert (await cluster.outcome(node, first)).status is AttemptStatus.SUPERSEDED
