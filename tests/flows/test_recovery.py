"""After a death: what becomes of the turns that a dead node held, on real stores (I12, I19)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lastgood.core.approval import shown
from lastgood.errors import AgentNotFound, NothingPending, SessionBusy, SessionNotFound
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.agents import AgentSpec, OnUnknown, Permissions
from lastgood.model.answers import Answer, AnswerAction
from lastgood.model.attempts import Attempt, AttemptStatus, StepKind
from lastgood.model.events import TERMINAL, AttemptWaits, EventKind
from lastgood.model.ids import DEFAULT_TENANT, AttemptId, SessionId
from lastgood.model.sessions import SessionStatus, TurnKind
from lastgood.wiring import Lastgood
from tests.faults.faults import Mode
from tests.faults.world import OTHER_MODEL
from tests.flows.cluster import LIMITS, PATIENCE_SECONDS, Cluster, Gate, eventually, gate_tool
from tests.present import present

pytestmark = pytest.mark.anyio

#: A lease that a node keeps on a slow machine until it dies, and that a test can wait for.
WAITED_FOR = replace(LIMITS, lease_seconds=3.0)


def story(policy: OnUnknown) -> str:
    """Two calls; the node dies while the second is at work: its effect is there, its result is not."""
    return f'!tool ledger-repeat {{"text": "a"}}\n!tool ledger-{policy.value} {{"text": "b"}}\n!say done'


@dataclass
class Death:
    """A node that died in the middle of a turn."""

    node: Lastgood
    session: SessionId
    turn: TurnHandle


async def dies(
    cluster: Cluster,
    text: str,
    *,
    at: str = "b",
    node: Lastgood | None = None,
    lease_ends: bool = True,
    **ask: Any,
) -> Death:
    node = node or await cluster.node("dead")
    died = dies_at(cluster, node, at)
    session = await cluster.session(node)
    turn = await cluster.submit(node, session, text, **ask)
    await buried(cluster, node, died, lease_ends=lease_ends)
    return Death(node, session, turn)


def dies_at(cluster: Cluster, node: Lastgood, at: str) -> asyncio.Event:
    """No store call of the node returns from the moment on that the effect `at` is there."""
    died = asyncio.Event()

    def on_effect(line: dict[str, Any]) -> None:
        if line["text"] == at:
            cluster.faults(node).dead = True
            died.set()

    cluster.world.on_effect = on_effect
    return died


async def buried(cluster: Cluster, node: Lastgood, died: asyncio.Event, *, lease_ends: bool = True) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await died.wait()
    cluster.world.on_effect = None
    await cluster.kill(node, lease_ends=lease_ends)


async def next_node(cluster: Cluster, name: str = "next", **fields: Any) -> Lastgood:
    """The next process. Only a node that starts finds the dead one at once on SQLite."""
    await cluster.reopen()
    return await cluster.node(name, alone=True, **fields)


async def until_settled(cluster: Cluster, session: SessionId, tries: int) -> list[Attempt]:
    """The attempts, once there are so many and none of them runs."""

    async def settled() -> list[Attempt] | None:
        found = list(await cluster.attempts(session))
        rests = all(one.status is not AttemptStatus.RUNNING for one in found)
        return found if len(found) >= tries and rests else None

    found: list[Attempt] = await eventually(settled)
    return found


async def recover(node: Lastgood) -> None:
    """All that a sweep does by itself, once more and at once."""
    await node.recovery.sweep()
    await node.recovery.retry_durable()


def effects(cluster: Cluster) -> list[str]:
    return [line["text"] for line in cluster.world.ledger]


# -- ending what the dead held -----------------------------------------------------------


async def test_I12_a_restart_ends_what_the_dead_process_held(cluster: Cluster) -> None:
    """On SQLite nobody waits for a lease: there is one process, and it is a new one."""
    death = await dies(cluster, story(OnUnknown.REPEAT), lease_ends=not cluster.is_sqlite)
    node = await next_node(cluster)
    if cluster.is_sqlite:
        assert (await cluster.get(death.session)).attempt is None
    (attempt,) = await until_settled(cluster, death.session, 1)
    assert (attempt.status, attempt.error_code) == (AttemptStatus.INTERRUPTED, "turn_failed")
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, death.session, after=0)
    assert [event.kind for event in events if event.kind in TERMINAL] == [EventKind.TURN_FAILED]
    assert events[-3].seq - events[-4].seq > 1, "numbers that a dead node may have shown are not given again"
    await cluster.good(node, death.session, "go on")
    assert cluster.last_prompt == [("user", "go on")]


async def test_I12_another_node_waits_for_the_lease_and_no_longer(cluster: Cluster) -> None:
    dead = await cluster.node("dead", limits=WAITED_FOR)
    death = await dies(cluster, story(OnUnknown.REPEAT), node=dead, lease_ends=False)
    other = await cluster.node("other", alive=False)
    with pytest.raises(SessionBusy):
        await cluster.submit(other, death.session, "too early")
    assert await other.recovery.sweep() == 0

    async def swept() -> bool:
        return await other.recovery.sweep() == 1

    await eventually(swept)
    assert (await cluster.attempt(death.turn.attempt)).status is AttemptStatus.INTERRUPTED
    assert await other.recovery.sweep() == 0
    await cluster.good(other, death.session, "go on")


async def test_I10_a_node_that_was_paused_finds_itself_replaced(cluster: Cluster) -> None:
    """Nobody swept: the next request ends the dead attempt itself."""
    gate = Gate()
    paused = await cluster.node("paused", tools=[gate_tool(gate)], limits=WAITED_FOR, alive=False)
    other = await cluster.node("other", alive=False)
    session = await cluster.session(paused)
    late = await cluster.submit(paused, session, "!tool gate {}\n!say too late")
    await gate.until_reached()

    async def begun() -> TurnHandle | None:
        try:
            return await cluster.submit(other, session, "me")
        except SessionBusy:
            return None

    taken: TurnHandle = await eventually(begun)
    gate.open()
    outcome = await cluster.outcome(paused, late)
    assert (outcome.status, outcome.turn) == (AttemptStatus.INTERRUPTED, None)
    assert (await cluster.outcome(other, taken)).status is AttemptStatus.COMMITTED
    assert [turn.messages[0].content for turn in await cluster.turns(session)] == ["me"]
    first, second = await cluster.attempts(session)
    assert first.fence < second.fence


async def test_I11_a_node_that_cannot_renew_stops_before_its_lease_ends(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node("cut off", tools=[gate_tool(gate)], limits=WAITED_FOR)
    session = await cluster.session(node)
    began = asyncio.get_running_loop().time()
    running = await cluster.submit(node, session, "!tool gate {}")
    await gate.until_reached()
    cluster.strike(node, "store.renew_leases", Mode.RAISE, always=True)
    outcome = await cluster.outcome(node, running)
    assert outcome.turn is None
    assert outcome.error is not None
    assert outcome.error.code == "store_unavailable"
    assert asyncio.get_running_loop().time() - began < LIMITS.lease_seconds


# -- trying promised turns again ----------------------------------------------------------


async def test_a_plain_request_is_not_tried_again(cluster: Cluster) -> None:
    death = await dies(cluster, story(OnUnknown.REPEAT), lease_ends=not cluster.is_sqlite)
    node = await next_node(cluster)
    await until_settled(cluster, death.session, 1)
    await recover(node)
    assert len(await cluster.attempts(death.session)) == 1
    assert effects(cluster) == ["a", "b"]
    assert len(cluster.world.prompts) == 2


@pytest.mark.parametrize(
    ("policy", "result", "done"),
    [
        (OnUnknown.REPEAT, "noted b", ["a", "b", "b"]),
        (OnUnknown.FAIL, "The server was interrupted while this tool ran.", ["a", "b"]),
    ],
)
async def test_a_durable_turn_continues_after_its_finished_steps(
    cluster: Cluster, policy: OnUnknown, result: str, done: list[str]
) -> None:
    """Neither the model nor a finished tool is asked again; what may have happened, by the tool's policy."""
    death = await dies(cluster, story(policy), durable=True)
    assert len(cluster.world.prompts) == 2
    await next_node(cluster)
    first, second = await until_settled(cluster, death.session, 2)
    assert (first.status, second.status) == (AttemptStatus.INTERRUPTED, AttemptStatus.COMMITTED)
    assert (second.turn, second.number, second.continues) == (first.turn, 2, first.id)
    assert "3 finished steps" in second.decision["recovery"]
    assert effects(cluster) == done
    assert len({line["key"] for line in cluster.world.ledger}) == 2, (
        "the key of a call is the same in each try"
    )
    assert [record["number"] for record in cluster.world.prompts] == [1, 1, 2]
    (turn,) = await cluster.turns(death.session)
    assert [message.role.value for message in turn.messages] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert turn.messages[2].content == "noted a"
    assert turn.messages[4].content.startswith(result)
    assert turn.messages[5].content == "done"


async def test_a_durable_turn_that_lacked_only_its_commit_calls_no_model_again(cluster: Cluster) -> None:
    """The dead node's last answer was not journaled, so only that one is asked for again."""
    node = await cluster.node("dead")
    died = asyncio.Event()
    session = await cluster.session(node)

    async def jitter(point: str) -> None:
        if point == "store.commit_if_head":
            cluster.faults(node).dead = True
            died.set()

    cluster.faults(node).jitter = jitter
    await cluster.submit(node, session, '!tool ledger-fail {"text": "a"}\n!say done', key="k", durable=True)
    await buried(cluster, node, died)
    await next_node(cluster)
    _, second = await until_settled(cluster, session, 2)
    assert second.status is AttemptStatus.COMMITTED
    assert effects(cluster) == ["a"]
    assert [record["number"] for record in cluster.world.prompts] == [1, 1, 2]


def changed_digest(agent: AgentSpec) -> AgentSpec:
    return replace(agent, digest="sha256:another")


def changed_model(agent: AgentSpec) -> AgentSpec:
    return replace(agent, model=OTHER_MODEL)


@pytest.mark.parametrize("change", [changed_digest, changed_model])
async def test_a_durable_turn_starts_from_its_input_when_agent_or_model_has_changed(
    cluster: Cluster, change: Any
) -> None:
    death = await dies(cluster, story(OnUnknown.REPEAT), durable=True)
    await next_node(cluster, agents=[change(cluster.agent())])
    _, second = await until_settled(cluster, death.session, 2)
    assert (second.status, second.continues) == (AttemptStatus.COMMITTED, None)
    assert "starts from its input" in second.decision["recovery"]
    assert effects(cluster) == ["a", "b", "a", "b"]
    assert [len(record["prompt"]) for record in cluster.world.prompts] == [1, 3, 1, 3, 5]


async def test_a_durable_turn_starts_from_its_input_when_the_head_has_moved(cluster: Cluster) -> None:
    """Nobody served its agent at first, so it was owed while something else was committed."""
    death = await dies(cluster, story(OnUnknown.REPEAT), durable=True)
    without = await next_node(cluster, "without", agents=[])
    await cluster.until_free(death.session)
    await cluster.good(without, death.session, "a note", kind=TurnKind.APPEND)
    await cluster.stop(without)
    await next_node(cluster)
    tries = await until_settled(cluster, death.session, 3)
    assert [one.status.value for one in tries] == ["interrupted", "committed", "committed"]
    assert (tries[2].turn, tries[2].continues) == (death.turn.turn, None)
    assert cluster.world.prompts[2]["prompt"][0]["content"] == "a note"
    assert [turn.seq for turn in await cluster.turns(death.session)] == [1, 2]


async def test_a_turn_that_kills_its_server_is_left_after_three_tries(cluster: Cluster) -> None:
    """Until somebody asks for it again."""
    text = '!tool ledger-repeat {"text": "b"}\n!say done'
    death = await dies(cluster, text, durable=True, key="k")
    for number in (2, 3):
        await cluster.reopen()
        victim = await cluster.node(f"victim {number}", alive=False)
        died = dies_at(cluster, victim, "b")

        async def tried(victim: Lastgood = victim, died: asyncio.Event = died) -> bool:
            if not died.is_set():
                # It may die in the middle of this; then nothing that it asks the store ever comes back.
                recovering = asyncio.create_task(recover(victim))
                dying = asyncio.create_task(died.wait())
                await asyncio.wait({recovering, dying}, return_when=asyncio.FIRST_COMPLETED)
                dying.cancel()
                recovering.cancel()
                with suppress(asyncio.CancelledError):
                    await recovering
            return died.is_set()

        await eventually(tried)
        await buried(cluster, victim, died)
    node = await next_node(cluster, "last")
    tries = await until_settled(cluster, death.session, 3)
    await recover(node)
    assert [one.number for one in tries] == [1, 2, 3]
    assert {one.status for one in await cluster.attempts(death.session)} == {AttemptStatus.INTERRUPTED}
    assert (await cluster.get(death.session)).attempt is None
    again = await cluster.submit(node, death.session, text, key="k", durable=True)
    assert again.turn == death.turn.turn
    assert (await cluster.outcome(node, again)).status is AttemptStatus.COMMITTED


async def test_I19_recovery_that_runs_on_every_node_tries_again_once(cluster: Cluster) -> None:
    death = await dies(cluster, story(OnUnknown.FAIL), durable=True)
    others = [await cluster.node(f"other {n}") for n in range(3)]
    tries = await until_settled(cluster, death.session, 2)
    await asyncio.gather(*map(recover, others))
    assert (
        [one.number for one in tries]
        == [1, 2]
        == [one.number for one in await cluster.attempts(death.session)]
    )
    assert effects(cluster) == ["a", "b"]


async def test_I12_abandoned_turns_do_not_hide_durable_ones(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of turns whose agent is gone, and one more whose agent is there."""
    monkeypatch.setattr("lastgood.flows.recovery._PAGE", 1)
    agents = [cluster.agent(), cluster.agent("gone")]
    node = await cluster.node("dead", agents=agents)
    gone, durable = await cluster.session(node, "gone"), await cluster.session(node)
    died = dies_at(cluster, node, "b")
    await cluster.submit(node, gone, "!slow 60\n!say never", durable=True)
    await cluster.until_prompted(1)
    await cluster.submit(node, durable, story(OnUnknown.REPEAT), durable=True)
    await buried(cluster, node, died)
    next_one = await next_node(cluster, alive=False)

    async def both_are_interrupted() -> bool:
        await next_one.recovery.sweep()
        tries = [(await cluster.attempts(session))[0] for session in (gone, durable)]
        return all(one.status is AttemptStatus.INTERRUPTED for one in tries)

    await eventually(both_are_interrupted)
    for _ in range(3):
        await next_one.recovery.retry_durable()
    await cluster.quiet(next_one)
    assert (await cluster.get(durable)).turns == 1


# -- asking a person ----------------------------------------------------------------------


async def waits(cluster: Cluster, **fields: Any) -> tuple[Lastgood, SessionId, Attempt]:
    """A promised turn that nobody but a person can take further."""
    death = await dies(cluster, story(OnUnknown.ASK), durable=True)
    node = await next_node(cluster, **fields)
    _, attempt = await until_settled(cluster, death.session, 2)
    assert attempt.status is AttemptStatus.WAITING
    return node, death.session, attempt


async def test_an_unknown_outcome_may_be_a_question(cluster: Cluster) -> None:
    node, session, attempt = await waits(cluster)
    assert attempt.question is not None
    assert attempt.question == {
        "definition": attempt.question["definition"],
        "kind": "unknown_outcome",
        "place": "2:call-1-0",
        "call": "call-1-0",
        "tool": "ledger-ask",
        "arguments": '{"text": "b"}',
    }
    assert attempt.deadline is not None
    found = await cluster.get(session)
    assert (found.status, found.attempt) == (SessionStatus.WAITING, attempt.id)
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    assert isinstance(events[-1].data, AttemptWaits)
    assert events[-1].data.question == shown(attempt.question)
    with pytest.raises(SessionBusy) as refused:
        await cluster.submit(node, session, "me")
    assert refused.value.detail["status"] == "waiting"
    assert effects(cluster) == ["a", "b"]


async def test_a_question_survives_a_restart_and_every_sweep(cluster: Cluster) -> None:
    node, _, attempt = await waits(cluster)
    await cluster.stop(node)
    for name in ("second", "third"):
        node = await next_node(cluster, name)
        await recover(node)
        assert await cluster.attempt(attempt.id) == attempt
        await cluster.stop(node)


@pytest.mark.parametrize(
    ("answer", "result", "done"),
    [
        ("repeat", "noted b", ["a", "b", "b"]),
        ("skip", "The server was interrupted while this tool ran.", ["a", "b"]),
    ],
)
@pytest.mark.parametrize("restart", [False, True], ids=["here", "after a restart"])
async def test_an_answer_takes_the_turn_up_again(
    cluster: Cluster, answer: str, result: str, done: list[str], restart: bool
) -> None:
    node, session, attempt = await waits(cluster)
    if restart:
        await cluster.stop(node)
        node = await next_node(cluster, "after")
    submitted = await node.turns.answer(DEFAULT_TENANT, session, attempt.id, Answer(AnswerAction(answer)))
    assert submitted.attempt == attempt.id
    outcome = await cluster.outcome(node, submitted)
    assert outcome.status is AttemptStatus.COMMITTED
    assert outcome.turn is not None
    assert outcome.turn.messages[4].content.startswith(result)
    assert effects(cluster) == done
    ended = await cluster.attempt(attempt.id)
    assert ended.fence > attempt.fence
    with pytest.raises(NothingPending):
        await node.turns.answer(DEFAULT_TENANT, session, attempt.id, Answer(AnswerAction(answer)))
    await cluster.good(node, session, "go on")


async def test_a_call_that_a_person_repeats_needs_no_second_approval(cluster: Cluster) -> None:
    """It needed one before it ran for the first time. Who says "repeat" was shown the same call."""
    agent = cluster.agent(permissions=Permissions(ask=("ledger-ask",)))
    node = await cluster.node("dead", agents=[agent])
    session = await cluster.session(node)
    waiting = await cluster.submit(node, session, '!tool ledger-ask {"text": "b"}\n!say done', durable=True)
    assert (await cluster.outcome(node, waiting)).status is AttemptStatus.WAITING
    died = dies_at(cluster, node, "b")
    approved = Answer(AnswerAction.APPROVE)
    await node.turns.answer(DEFAULT_TENANT, session, present(waiting.attempt), approved)
    await buried(cluster, node, died)
    node = await next_node(cluster, agents=[agent])

    async def question() -> Attempt | None:
        found = await cluster.attempts(session)
        return next((one for one in found if one.number == 2 and one.question), None)

    asked = await eventually(question)
    assert asked.question["kind"] == "unknown_outcome"
    turn = await node.turns.answer(DEFAULT_TENANT, session, asked.id, Answer(AnswerAction.REPEAT))
    outcome = await cluster.outcome(node, turn)
    assert outcome.turn is not None, outcome.error
    assert outcome.turn.messages[2].content == "noted b"
    assert effects(cluster) == ["b", "b"]


async def test_of_two_answers_one_counts(cluster: Cluster) -> None:
    node, session, attempt = await waits(cluster)
    await cluster.stop(node)
    nodes = [await cluster.node(name) for name in ("one", "other")]
    answers = Answer(AnswerAction.REPEAT)
    found = await asyncio.gather(
        *(one.turns.answer(DEFAULT_TENANT, session, attempt.id, answers) for one in nodes),
        return_exceptions=True,
    )
    assert sum(isinstance(one, NothingPending) for one in found) == 1
    await cluster.until_free(session)
    assert effects(cluster) == ["a", "b", "b"]


async def test_an_answer_to_another_question_is_refused(cluster: Cluster) -> None:
    node, session, attempt = await waits(cluster)
    with pytest.raises(NothingPending, match="Another question"):
        await node.turns.answer(
            DEFAULT_TENANT, session, attempt.id, Answer(AnswerAction.REPEAT), place="9:call-9-9"
        )
    assert (await cluster.attempt(attempt.id)).status is AttemptStatus.WAITING
    assert effects(cluster) == ["a", "b"]
    with pytest.raises(SessionNotFound):
        await node.turns.answer(DEFAULT_TENANT, session, AttemptId("att_unknown"), Answer(AnswerAction.SKIP))


async def test_an_answer_while_the_agent_is_gone_is_refused_and_can_be_given_later(cluster: Cluster) -> None:
    node, session, attempt = await waits(cluster)
    await cluster.stop(node)
    node = await next_node(cluster, "without", agents=[])
    with pytest.raises(AgentNotFound):
        await node.turns.answer(DEFAULT_TENANT, session, attempt.id, Answer(AnswerAction.SKIP))
    assert await cluster.attempt(attempt.id) == attempt
    await cluster.stop(node)
    node = await next_node(cluster, "with")
    submitted = await node.turns.answer(DEFAULT_TENANT, session, attempt.id, Answer(AnswerAction.SKIP))
    assert (await cluster.outcome(node, submitted)).status is AttemptStatus.COMMITTED


async def test_a_waiting_turn_can_be_cancelled(cluster: Cluster) -> None:
    node, session, attempt = await waits(cluster)
    outcome = await node.turns.cancel(DEFAULT_TENANT, session)
    assert (outcome.attempt, outcome.status) == (attempt.id, AttemptStatus.CANCELLED)
    await cluster.good(node, session, "go on")
    assert cluster.last_prompt == [("user", "go on")]


async def test_I12_an_unanswered_question_ends_the_turn_in_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastgood.engine.turn_loop.ANSWER_SECONDS", 0.3)
    node, session, attempt = await waits(cluster)
    await cluster.until_free(session)
    ended = await cluster.attempt(attempt.id)
    assert (ended.status, ended.error_code) == (AttemptStatus.FAILED, "turn_failed")
    assert "not answered in time" in (ended.error_message or "")
    with pytest.raises(NothingPending):
        await node.turns.answer(DEFAULT_TENANT, session, attempt.id, Answer(AnswerAction.SKIP))
    await recover(node)
    assert len(await cluster.attempts(session)) == 2
    await cluster.good(node, session, "go on")
    assert cluster.last_prompt == [("user", "go on")]


async def test_two_open_calls_of_one_answer_wait_for_approval_one_by_one(cluster: Cluster) -> None:
    text = '!tool ledger-ask {"text": "b"}\n!also ledger-ask {"text": "c"}\n!say done'
    death = await dies(cluster, text, durable=True)
    node = await next_node(cluster)
    _, attempt = await until_settled(cluster, death.session, 2)
    for call, answer in (("call-0-0", "skip"), ("call-0-1", "repeat")):
        now = await cluster.attempt(attempt.id)
        assert now.question is not None
        assert now.question["call"] == call
        submitted = await node.turns.answer(
            DEFAULT_TENANT, death.session, attempt.id, Answer(AnswerAction(answer))
        )
        outcome = await cluster.outcome(node, submitted)
    assert outcome.status is AttemptStatus.COMMITTED
    assert effects(cluster) == ["b", "c"]


async def test_the_steps_of_a_dead_attempt_stay_readable(cluster: Cluster) -> None:
    death = await dies(cluster, story(OnUnknown.REPEAT))
    await next_node(cluster)
    await until_settled(cluster, death.session, 1)
    steps = await cluster.backend.store.read_steps(DEFAULT_TENANT, present(death.turn.attempt))
    assert [step.kind for step in steps] == [StepKind.MODEL, StepKind.TOOL, StepKind.MODEL]
