"""M2: what failed is kept beside the conversation, never in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.errors import InvalidRequest, LastgoodError, ModelError, SessionBusy, StoreUnavailable, TooLarge
from lastgood.flows.dependencies import FlowLimits
from lastgood.model.attempts import AttemptStatus, StepKind
from lastgood.model.events import TERMINAL, AttemptFailed, EventKind, TextStreamed
from lastgood.model.ids import DEFAULT_TENANT, AttemptId
from lastgood.model.messages import Message, assistant, tool_result, user
from lastgood.model.sessions import TurnKind, Usage
from lastgood.wiring import Lastgood, running
from tests.contract.conftest import dump
from tests.engines import toolsets
from tests.faults.faults import Mode
from tests.faults.world import World
from tests.flows.cluster import LIMITS, Cluster, Gate, TitleModel, gate_tool, said
from tests.present import present

pytestmark = pytest.mark.anyio

watched = pytest.mark.parametrize("watch", [True, False], ids=["watched", "not watched"])

FIRST = [("user", "tok1 hello"), ("assistant", "You said: tok1 hello")]


async def broken(use: ToolUse) -> str:
    raise RuntimeError("no disk")


async def refusing(use: ToolUse) -> str:
    raise ModelError("a tool that ends the turn")


TOOLS = [
    Tool(name, "", {"type": "object"}, run) for name, run in [("broken", broken), ("refusing", refusing)]
]


@dataclass(frozen=True)
class Failure:
    name: str
    text: str
    code: str
    limits: FlowLimits = LIMITS
    point: str = ""


#: Each way a turn can fail by itself, and what its caller is told.
FAILURES = [
    Failure("before streaming", "\n!fail before", "model_error"),
    Failure("during streaming", "\n!say a b c d\n!fail during", "model_error"),
    Failure("after streaming", "\n!fail after", "model_error"),
    Failure("after a tool", '\n!tool ledger-fail {"text": "x"}\n!fail before', "model_error"),
    Failure("an empty answer", "\n!empty", "model_garbled"),
    Failure("a blank answer", '\n!say-json " \\n "', "model_garbled"),
    Failure("no sign of life", "\n!slow 60", "turn_timeout", replace(LIMITS, idle_seconds=0.05)),
    Failure(
        "too slow in all",
        "\n!slow 0.02\n!say " + "a " * 200,
        "turn_timeout",
        replace(LIMITS, turn_seconds=0.1),
    ),
    Failure("too many calls", "\n!tool echo {}" * 4, "loop_detected"),
    Failure("a tool ends it", "\n!tool refusing {}", "model_error"),
    Failure("the journal fails", "\n!tool echo {}", "store_unavailable", point="store.journal_if_held"),
    Failure(
        "the events fail",
        "\n!slow 0.02\n!say a b c d",
        "store_unavailable",
        point="store.append_events_if_held",
    ),
    Failure("the history is unreadable", "\n!say a", "store_unavailable", point="store.read_turns"),
    Failure("the commit fails", "\n!say a", "store_unavailable", point="store.commit_if_head"),
]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that fail for good are given up in milliseconds."""
    monkeypatch.setattr(FlowLimits, "outage_seconds", 0.1)
    monkeypatch.setattr("lastgood.flows.attempt_run._END_SECONDS", 0.1)


async def fragile(cluster: Cluster, failure: Failure) -> Lastgood:
    agent = cluster.agent(tools=tuple(tool.name for tool in TOOLS), max_iterations=3)
    return await cluster.node(agents=[agent], tools=TOOLS, limits=failure.limits, kept_histories=0)


@watched
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
async def test_M2_1_a_failed_turn_leaves_the_next_prompt_clean(
    cluster: Cluster, world: World, impatient: None, failure: Failure, watch: bool
) -> None:
    """Also M2.2 and I2: streamed or not, the hash of the history is what it was."""
    node = await fragile(cluster, failure)
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1", watch=watch)
    before = await cluster.get(session)
    if failure.point:
        cluster.strike(node, failure.point, Mode.RAISE, always=True)
    received = await world.ask(node, session, failure.text, "tok2", watch=watch)
    cluster.heal(node)
    assert received.outcome in ("failed", "unknown")
    assert received.code == failure.code
    if watch:
        ending = [event[1] for event in received.events[-3:]]
        assert ending == [EventKind.ATTEMPT_ERRED, EventKind.TURN_FAILED, EventKind.ATTEMPT_ENDED]
    after = await cluster.get(session)
    assert after.head == before.head
    assert (after.usage, after.model, after.attempt) == (before.usage, before.model, None)
    good = await world.ask(node, session, "again", "tok3", watch=watch)
    assert good.outcome == "committed"
    assert cluster.last_prompt == [*FIRST, ("user", "tok3 again")]


@watched
async def test_M2_1_a_retry_of_a_failed_first_turn_starts_from_nothing(
    cluster: Cluster, world: World, node: Lastgood, watch: bool
) -> None:
    session = await world.create(node)
    for number in range(3):
        received = await world.ask(node, session, "\n!fail during", f"tok{number}", watch=watch)
        assert received.outcome == "failed"
    assert (await cluster.get(session)).head is None
    await world.ask(node, session, "fine", "tok9", watch=watch)
    assert cluster.last_prompt == [("user", "tok9 fine")]


@watched
async def test_M2_1_a_cancelled_turn_leaves_the_next_prompt_clean(
    cluster: Cluster, world: World, watch: bool
) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    before = await cluster.get(session)
    running = asyncio.create_task(
        world.ask(node, session, '\n!tool ledger-fail {"text": "x"}\n!tool gate {}', "tok2", watch=watch)
    )
    await gate.until_reached()
    assert (await world.cancel(node, session)).outcome == "done"
    assert (await running).outcome == "cancelled"
    gate.open()
    assert (await cluster.get(session)).head == before.head
    await world.ask(node, session, "again", "tok3")
    assert cluster.last_prompt == [*FIRST, ("user", "tok3 again")]


async def test_M2_1_a_cancel_in_mid_stream_leaves_the_next_prompt_clean(
    cluster: Cluster, world: World, node: Lastgood
) -> None:
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    running = asyncio.create_task(world.ask(node, session, "\n!slow 0.05\n!say " + "word " * 100, "tok2"))
    await cluster.until_prompted(2)
    await cluster.until_received(session, EventKind.TEXT_STREAMED, times=2)
    assert (await world.cancel(node, session)).outcome == "done"
    assert (await running).outcome == "cancelled"
    await world.ask(node, session, "again", "tok3")
    assert cluster.last_prompt == [*FIRST, ("user", "tok3 again")]


async def test_M2_1_a_begin_that_fails_has_changed_nothing(
    cluster: Cluster, world: World, node: Lastgood
) -> None:
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    await cluster.quiet(node)
    before = await dump(cluster.backend)
    cluster.strike(node, "store.begin_if_free", Mode.RAISE)
    with pytest.raises(StoreUnavailable):
        await cluster.submit(node, session, "tok2")
    await cluster.quiet(node)
    assert await dump(cluster.backend) == before
    assert len(world.prompts) == 1
    await world.ask(node, session, "again", "tok3")
    assert cluster.last_prompt == [*FIRST, ("user", "tok3 again")]


@pytest.mark.parametrize("mode", [Mode.LOST, Mode.SILENT])
@pytest.mark.parametrize("point", ["store.begin_if_free", "store.commit_if_head"])
async def test_M2_1_a_lost_answer_neither_doubles_nor_loses_the_turn(
    cluster: Cluster, world: World, node: Lastgood, point: str, mode: Mode
) -> None:
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    cluster.strike(node, point, mode)
    received = await world.ask(node, session, "two", "tok2")
    assert received.outcome == "committed"
    assert [attempt.number for attempt in await cluster.attempts(session)] == [1, 1]
    await world.ask(node, session, "three", "tok3")
    assert cluster.last_prompt[2:] == [
        ("user", "tok2 two"),
        ("assistant", "You said: tok2 two"),
        ("user", "tok3 three"),
    ]


@pytest.mark.parametrize("mode", [Mode.LOST, Mode.SILENT])
async def test_M2_1_a_commit_whose_answer_stays_lost_is_never_called_a_failure(
    cluster: Cluster, world: World, impatient: None, node: Lastgood, mode: Mode
) -> None:
    """Whoever reads afterwards finds the turn whole or not at all."""
    session = await world.create(node)
    cluster.strike(node, "store.commit_if_head", mode, always=True)
    received = await world.ask(node, session, "hello", "tok1")
    cluster.heal(node)
    turns = await cluster.turns(session)
    if mode is Mode.LOST:
        assert received.outcome == "committed"
        assert [turn.id for turn in turns] == [received.turn]
    else:
        # Its end could be written, so it still held its session: the commit cannot have happened.
        assert (received.outcome, received.code) == ("failed", "store_unavailable")
        assert turns == ()


async def test_M2_1_a_tool_that_raises_is_a_result_and_no_failure(cluster: Cluster, world: World) -> None:
    async def failing(use: ToolUse) -> str:
        raise ToolFailed("no such file")

    tools = [*TOOLS, Tool("failing", "", {"type": "object"}, failing)]
    node = await cluster.node(tools=tools)
    session = await world.create(node)
    received = await world.ask(node, session, "\n!tool broken {}\n!tool failing {}\n!tool nobody {}", "tok1")
    assert received.outcome == "committed"
    results = [text for role, text in cluster.last_prompt if role == "tool"]
    assert results == [
        "error: the tool failed unexpectedly: RuntimeError('no disk')",
        "error: no such file",
        "error: unknown tool 'nobody'",
    ]


async def test_M2_1_a_tool_that_never_returns_is_left_behind_and_commits_nothing(
    cluster: Cluster, world: World
) -> None:
    gate = Gate()
    effects: list[str] = []

    async def stubborn(use: ToolUse) -> str:
        while not gate.opened.is_set():
            try:
                await gate()
            except asyncio.CancelledError:
                continue
        effects.append("late")
        return "at last"

    node = await cluster.node(tools=[Tool("stubborn", "", {"type": "object"}, stubborn)])
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    before = await cluster.get(session)
    running = await cluster.submit(node, session, "!tool stubborn {}")
    await gate.until_reached()
    try:
        async with asyncio.timeout(LIMITS.stop_seconds + 2):
            assert (await world.cancel(node, session)).outcome == "done"
    except TimeoutError:
        gate.open()
        await cluster.until_free(session)
        raise
    await world.ask(node, session, "meanwhile", "tok2")
    gate.open()
    worker = cluster.run_of(running).worker
    assert worker is not None
    await asyncio.wait({worker})
    assert effects == ["late"]
    assert worker.cancelled()
    assert (await cluster.attempt(running.attempt)).status is AttemptStatus.CANCELLED
    assert await cluster.backend.store.read_steps(DEFAULT_TENANT, present(running.attempt)) != ()
    assert [turn.seq for turn in await cluster.turns(session)] == [1, 2]
    assert before.head is not None
    await world.ask(node, session, "again", "tok3")
    assert cluster.last_prompt == [
        *FIRST,
        ("user", "tok2 meanwhile"),
        ("assistant", "You said: tok2 meanwhile"),
        ("user", "tok3 again"),
    ]


@watched
async def test_M2_2_the_same_text_is_shown_and_the_outcome_decides(
    cluster: Cluster, world: World, node: Lastgood, watch: bool
) -> None:
    """The whole answer was streamed, and nothing is committed: what was sent decides nothing."""
    session = await world.create(node)
    await world.ask(node, session, "\n!say all of it\n!fail after", "tok1", watch=watch)
    events = await cluster.backend.store.read_events(DEFAULT_TENANT, session, after=0)
    text = "".join(e.data.content for e in events if isinstance(e.data, TextStreamed))
    assert text == "all of it"
    assert [event.kind for event in events if event.kind in TERMINAL] == [EventKind.TURN_FAILED]
    assert (await cluster.get(session)).head is None


@watched
async def test_M2_2_a_watcher_that_stops_reading_changes_nothing(
    cluster: Cluster, world: World, watch: bool
) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await cluster.session(node)
    submitted = await cluster.submit(node, session, "!tool gate {}\n!say done")
    if watch:
        async for _ in submitted.events():
            break
    await gate.until_reached()
    gate.open()
    assert (await cluster.outcome(node, submitted)).status is AttemptStatus.COMMITTED


# -- M2.3 ------------------------------------------------------------------------

HALF = "\ud83d"

UNUSABLE: dict[str, tuple[tuple[Message, ...], type[LastgoodError]]] = {
    "nothing": ((), InvalidRequest),
    "empty": ((user(""),), InvalidRequest),
    "blank": ((user(" \n\t\u2003"),), InvalidRequest),
    "only an assistant's": ((assistant("hello"),), InvalidRequest),
    "an assistant's last": ((user("hello"), assistant("hello")), InvalidRequest),
    "a result last": ((user("hello"), tool_result("call-0-0", "x")), InvalidRequest),
    "results of nothing": ((tool_result("call-0-0", "x"),), InvalidRequest),
    "one blank of two": ((user(" "), user("hello")), InvalidRequest),
    "NUL": ((user("a\x00b"),), InvalidRequest),
    "half a character": ((user(f"a{HALF}b"),), InvalidRequest),
    "half a character in the first": ((user(HALF), user("fine")), InvalidRequest),
    "too much": ((user("x" * 1001),), TooLarge),
    "too many bytes": ((user("ä" * 501),), TooLarge),
    "too much in all": ((user("x" * 600), user("x" * 600)), TooLarge),
}


@pytest.mark.parametrize("case", UNUSABLE)
async def test_M2_3_unusable_input_is_refused_and_nothing_is_replayed(
    cluster: Cluster, world: World, node: Lastgood, case: str
) -> None:
    messages, error = UNUSABLE[case]
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    await cluster.quiet(node)
    before = await dump(cluster.backend)
    with pytest.raises(error) as refused:
        await cluster.submit(node, session, messages=messages)
    assert refused.type is error
    assert await dump(cluster.backend) == before
    assert len(world.prompts) == 1


async def test_M2_3_input_at_the_limit_is_taken(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    await cluster.good(node, session, "x" * 1000)
    await cluster.good(node, session, "😀" * 250)


async def test_M2_3_the_expected_head_is_checked_before_anything_is_stored(
    cluster: Cluster, node: Lastgood
) -> None:
    session = await cluster.session(node)
    first = await cluster.good(node, session, "one")
    await cluster.good(node, session, "two", expected_head=first.id)
    await cluster.quiet(node)
    before = await dump(cluster.backend)
    with pytest.raises(LastgoodError) as refused:
        await cluster.submit(node, session, "three", expected_head=first.id)
    assert refused.value.code == "stale_head"
    assert await dump(cluster.backend) == before


# -- M2.4 ------------------------------------------------------------------------


async def test_M2_4_metadata_belongs_to_its_session_alone(cluster: Cluster, node: Lastgood) -> None:
    mine: dict[str, Any] = {"a": {"b": [1]}}
    session = await cluster.session(node, metadata=mine)
    mine["a"]["b"].append(2)
    assert (await node.sessions.get(DEFAULT_TENANT, session)).metadata == {"a": {"b": [1]}}
    await node.sessions.set_metadata(DEFAULT_TENANT, session, mine)
    fork = await node.sessions.fork(DEFAULT_TENANT, session)
    mine["a"]["b"].append(3)
    (await node.sessions.get(DEFAULT_TENANT, session)).metadata["a"]["b"].append(4)
    fork.metadata["a"]["b"].append(5)
    for one in (session, fork.id):
        assert (await node.sessions.get(DEFAULT_TENANT, one)).metadata == {"a": {"b": [1, 2]}}


async def test_M2_4_what_a_caller_was_given_is_not_what_is_kept(cluster: Cluster, node: Lastgood) -> None:
    session = await cluster.session(node)
    turn = await cluster.good(node, session, "one")
    kept = dict(turn.decision)
    turn.decision.clear()
    whole = await node.sessions.read(DEFAULT_TENANT, session)
    whole.turns[0].decision.clear()
    assert (await cluster.turns(session))[0].decision == kept
    assert (await cluster.attempts(session))[0].decision == kept
    await cluster.good(node, session, "two")
    assert cluster.last_prompt == [("user", "one"), ("assistant", "You said: one"), ("user", "two")]


async def test_M2_4_a_tool_may_spoil_its_arguments(cluster: Cluster) -> None:
    async def spoiling(use: ToolUse) -> str:
        use.arguments["text"].append("spoiled")
        return "done"

    node = await cluster.node(tools=[Tool("spoiling", "", {"type": "object"}, spoiling)])
    session = await cluster.session(node)
    turn = await cluster.good(node, session, '!tool spoiling {"text": []}')
    assert turn.messages[1].tool_calls[0].arguments == '{"text": []}'
    await cluster.good(node, session, "two")
    prompt = cluster.world.prompts[-1]["prompt"]
    assert prompt[1]["tool_calls"][0]["function"]["arguments"] == '{"text": []}'


async def test_M2_4_a_model_may_spoil_the_tool_definitions_it_is_given(cluster: Cluster) -> None:
    seen: list[Any] = []

    class Spoiling:
        async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
            parameters = call.tools[0]["function"]["parameters"]
            seen.append(dict(parameters))
            parameters["spoiled"] = True
            yield ModelAnswer(assistant("fine"), Usage())

    tool = Tool("free", "", {"type": "object"}, broken)
    agent = replace(cluster.agent(model="builtin/spoiling"), toolsets=toolsets("free"))
    node = await cluster.node(agents=[agent], tools=[tool], providers={"builtin/spoiling": Spoiling()})
    for _ in range(2):
        await cluster.good(node, await cluster.session(node), "hello")
    assert seen == [{"type": "object"}, {"type": "object"}]


async def test_M2_4_forks_that_run_at_once_do_not_see_each_other(cluster: Cluster, world: World) -> None:
    gates = [Gate(), Gate()]
    node = await cluster.node(tools=[gate_tool(gates[0], "gate-0"), gate_tool(gates[1], "gate-1")])
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    forks = [await node.sessions.fork(DEFAULT_TENANT, session) for _ in gates]
    running = [
        await cluster.submit(node, fork.id, f"fork {number}\n!tool gate-{number} {{}}\n!remember")
        for number, fork in enumerate(forks)
    ]
    for gate in gates:
        await gate.until_reached()
    await world.ask(node, session, "and here", "tok2")
    for gate in gates:
        gate.open()
    for number, (fork, submitted) in enumerate(zip(forks, running, strict=True)):
        outcome = await cluster.outcome(node, submitted)
        assert outcome.turn is not None
        assert outcome.turn.messages[-1].content == f"I remember: tok1 hello | fork {number}"
        assert [turn.seq for turn in await cluster.turns(fork.id)] == [1, 2]
    assert len(await cluster.turns(session)) == 2


# -- M2.5 ------------------------------------------------------------------------


@watched
async def test_M2_5_a_busy_session_refuses_and_changes_nothing(cluster: Cluster, watch: bool) -> None:
    """Also M3.1 and I13; other sessions go on meanwhile."""
    gate = Gate()
    node = await cluster.node(
        tools=[gate_tool(gate)], limits=replace(LIMITS, heartbeat_seconds=60, lease_seconds=300)
    )
    other = await cluster.node("other", tools=[gate_tool(gate)])
    session, free = await cluster.session(node), await cluster.session(node)
    running = await cluster.submit(node, session, "!tool gate {}\n!say done")
    await gate.until_reached()
    await cluster.until_received(session, EventKind.TOOL_CALLED)
    before, prompts = await dump(cluster.backend), len(cluster.world.prompts)
    for asked in (node, other):
        with pytest.raises(SessionBusy) as refused:
            await cluster.submit(asked, session, "me too")
        assert refused.value.detail == {
            "attempt": running.attempt,
            "turn": running.turn,
            "status": "running",
        }
    assert await dump(cluster.backend) == before
    assert len(cluster.world.prompts) == prompts
    await cluster.good(other, free, "in parallel")
    gate.open()
    if watch:
        assert [event.kind async for event in running.events()][-2] is EventKind.TURN_COMMITTED
    assert (await cluster.outcome(node, running)).status is AttemptStatus.COMMITTED
    await cluster.good(other, session, "now me")
    assert [text for role, text in cluster.last_prompt if role == "user"][1:] == ["now me"]


async def test_M2_5_of_many_at_once_one_runs(cluster: Cluster) -> None:
    gate = Gate()
    nodes = [await cluster.node(name, tools=[gate_tool(gate)]) for name in ("a", "b")]
    session = await cluster.session(nodes[0])
    asked = [cluster.submit(nodes[n % 2], session, f"try {n}\n!tool gate {{}}") for n in range(10)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    busy = [one for one in found if isinstance(one, SessionBusy)]
    begun = [one for one in found if not isinstance(one, BaseException)]
    assert (len(begun), len(busy)) == (1, 9)
    assert {refused.detail["attempt"] for refused in busy} == {begun[0].attempt}
    gate.open()
    await cluster.until_free(session)
    assert len(await cluster.turns(session)) == len(await cluster.attempts(session)) == 1


async def test_M2_5_an_append_and_a_reset_wait_for_their_turn_too(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await cluster.session(node)
    running = await cluster.submit(node, session, "!tool gate {}")
    await gate.until_reached()
    for kind in (TurnKind.APPEND, TurnKind.RESET):
        with pytest.raises(SessionBusy):
            await cluster.submit(node, session, "note", kind=kind)
    gate.open()
    await cluster.outcome(node, running)
    await cluster.good(node, session, "a note", kind=TurnKind.APPEND)
    await cluster.good(node, session, "seen?")
    assert cluster.last_prompt[-2:] == [("user", "a note"), ("user", "seen?")]
    await cluster.good(node, session, messages=(), kind=TurnKind.RESET)
    await cluster.good(node, session, "fresh")
    assert cluster.last_prompt == [("user", "fresh")]


# -- M2.6 and M2.7 -----------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("end", ["!say done", "!fail after"])
async def test_M2_6_a_conversation_evicted_while_its_turn_runs_is_still_there(
    cluster: Cluster, world: World, kept: int, end: str
) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)], kept_histories=kept)
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    running = asyncio.create_task(world.ask(node, session, f"\n!tool gate {{}}\n{end}", "tok2"))
    await gate.until_reached()
    for number in range(3):
        await world.ask(node, await world.create(node), "another", f"other{number}")
    gate.open()
    outcome = (await running).outcome
    await world.ask(node, session, "again", "tok3")
    if end == "!say done":
        assert outcome == "committed"
        assert [text for _, text in cluster.last_prompt][-2:] == ["done", "tok3 again"]
        assert len(cluster.last_prompt) == 2 + 4 + 1
    else:
        assert outcome == "failed"
        assert cluster.last_prompt == [*FIRST, ("user", "tok3 again")]


async def test_M2_7_failed_attempts_stay_readable_and_out_of_every_prompt(
    cluster: Cluster, world: World, node: Lastgood
) -> None:
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    text = 'secret-1\n!tool ledger-fail {"text": "secret-2"}\n!say secret-3\n!fail during'
    failed = await world.ask(node, session, text, "tok2")
    await world.ask(node, session, "again", "tok3")
    assert "secret" not in str(cluster.last_prompt)
    tries = await node.sessions.attempts(DEFAULT_TENANT, session)
    assert [one.status.value for one in tries] == ["committed", "failed", "committed"]
    kept = tries[1]
    assert kept.id == failed.attempt
    assert (kept.error_code, kept.ended_at is not None) == ("model_error", True)
    assert "stream cut" in (kept.error_message or "")
    assert kept.base == tries[2].base
    steps = await cluster.backend.store.read_steps(DEFAULT_TENANT, AttemptId(kept.id))
    assert [step.kind for step in steps] == [StepKind.MODEL, StepKind.TOOL]
    assert steps[1].message.content == "noted secret-2"
    request = await cluster.backend.store.read_request(DEFAULT_TENANT, kept.turn)
    assert request is not None
    assert request.messages == (user(f"tok2 {text}"),)


async def test_M2_7_what_was_streamed_before_the_failure_can_be_read_again(
    cluster: Cluster, world: World, node: Lastgood
) -> None:
    """I22: the same events, in the same order, however often they are asked for."""
    session = await cluster.session(node)
    submitted = await cluster.submit(node, session, "!say a b c d\n!fail during")
    first = [event async for event in submitted.events()]
    second = [event async for event in submitted.events()]
    assert first == second
    assert [event.seq for event in first] == sorted({event.seq for event in first})
    assert isinstance(first[-2].data, AttemptFailed)
    assert first[-2].data.code == "model_error"
    assert said(cluster.world.prompts[-1]["prompt"]) == [("user", "!say a b c d\n!fail during")]


async def test_I12_no_error_text_keeps_an_attempt_from_ending(cluster: Cluster) -> None:
    """Half of a surrogate pair and NUL: text that no database takes."""
    broken = TitleModel(ModelError("half \ud83d a pair, and \x00"))
    node = await cluster.node("odd", providers={"odd/model": broken})
    session = await cluster.session(node)
    outcome = await cluster.outcome(node, await cluster.submit(node, session, "one", model="odd/model"))
    assert outcome.status is AttemptStatus.FAILED
    assert (await cluster.get(session)).attempt is None
    (attempt,) = await cluster.attempts(session)
    assert attempt.error_message == "half \ufffd a pair, and \ufffd"


async def test_a_server_that_stops_does_not_begin_again_what_it_interrupts(cluster: Cluster) -> None:
    gate = Gate()
    node = await cluster.node("stopping", tools=[gate_tool(gate)], alive=False)
    async with running(node, grace_seconds=0):
        session = await cluster.session(node)
        await cluster.submit(node, session, "!tool gate\n!say never", durable=True)
        await gate.until_reached()
    tries = await cluster.attempts(session)
    assert [(one.number, one.status) for one in tries] == [(1, AttemptStatus.INTERRUPTED)]
