"""M3: running a session: overrides, releasing, titles, several messages, deleting, slow agents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from lastgood.errors import InvalidRequest, ModelError, ModelUnknown, SessionNotFound, StoreUnavailable
from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.agents import AgentOrigin, AgentSpec
from lastgood.model.attempts import AttemptStatus
from lastgood.model.events import EventKind
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.messages import user
from lastgood.model.sessions import TitleBy
from lastgood.wiring import Lastgood
from tests.contract.conftest import dump
from tests.faults.faults import Mode
from tests.faults.world import AGENT, OTHER_MODEL, World
from tests.flows.cluster import PATIENCE_SECONDS, Cluster, Gate, TitleModel, gate_tool
from tests.present import present

pytestmark = pytest.mark.anyio

TITLES = "builtin/titles"


# -- overrides: M3.2, M3.3, M3.4 --------------------------------------------------


@pytest.mark.parametrize("model", ["nobody/knows", "noslash", "", "builtin/scripted\x00", "x/\ud800"])
async def test_M3_2_a_bad_override_leaves_no_trace(
    cluster: Cluster, world: World, node: Lastgood, model: str
) -> None:
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    await cluster.quiet(node)
    before = await dump(cluster.backend)
    with pytest.raises(InvalidRequest) as refused:
        await cluster.submit(node, session, "two", model=model)
    if "\x00" not in model and "\ud800" not in model:
        assert refused.type is ModelUnknown
    assert await dump(cluster.backend) == before
    assert len(world.prompts) == 1


@pytest.mark.parametrize("model", ["nobody/knows", "x/\ud800"])
async def test_M3_2_a_bad_override_with_a_key_is_refused_alike(
    cluster: Cluster, node: Lastgood, model: str
) -> None:
    session = await cluster.session(node)
    with pytest.raises(InvalidRequest):
        await cluster.submit(node, session, "two", model=model, key="k")
    assert await cluster.attempts(session) == ()


async def test_M3_3_an_override_holds_until_there_is_another(
    cluster: Cluster, world: World, node: Lastgood
) -> None:
    session = await world.create(node)
    asked = [None, OTHER_MODEL, None, AGENT, None]
    for number, model in enumerate(asked):
        received = await world.ask(node, session, "hello", f"tok{number}", model=model)
        assert received.outcome == "committed"
    ran = [AGENT, OTHER_MODEL, OTHER_MODEL, AGENT, AGENT]
    assert [turn.model for turn in await cluster.turns(session)] == ran
    assert [attempt.model for attempt in await cluster.attempts(session)] == ran
    assert [record["model"] for record in world.prompts] == ran
    assert (await cluster.get(session)).model == AGENT


async def test_M3_3_an_override_survives_a_restart(cluster: Cluster, world: World, node: Lastgood) -> None:
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1", model=OTHER_MODEL)
    await cluster.stop(node)
    await cluster.reopen()
    node = await cluster.node("next", alone=True)
    await world.ask(node, session, "and now", "tok2")
    assert [record["model"] for record in world.prompts] == [OTHER_MODEL, OTHER_MODEL]


@pytest.mark.parametrize("before", [None, AGENT])
async def test_M3_4_a_failed_turn_leaves_no_override(
    cluster: Cluster, world: World, node: Lastgood, before: str | None
) -> None:
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1", model=before)
    for number, when in enumerate(("before", "during", "after")):
        await world.ask(node, session, f"\n!fail {when}", f"bad{number}", model=OTHER_MODEL)
        assert (await cluster.get(session)).model == before
    await world.ask(node, session, "again", "tok2")
    assert world.prompts[-1]["model"] == AGENT


@pytest.mark.parametrize("point", ["store.begin_if_free", "store.commit_if_head"])
async def test_M3_4_a_failed_write_leaves_no_override(
    cluster: Cluster, world: World, node: Lastgood, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(FlowLimits, "outage_seconds", 0.1)
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    before = await cluster.get(session)
    cluster.strike(node, point, Mode.RAISE, always=True)
    received = await world.ask(node, session, "two", "tok2", model=OTHER_MODEL)
    cluster.heal(node)
    assert received.code == StoreUnavailable.code
    after = await cluster.get(session)
    assert (after.model, after.head, after.attempt) == (None, before.head, None)
    await world.ask(node, session, "again", "tok3")
    assert world.prompts[-1]["model"] == AGENT


# -- releasing: M3.5 ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["watch", "wait"])
async def test_M3_5_after_the_last_event_the_next_request_begins_at_once(
    cluster: Cluster, node: Lastgood, how: str
) -> None:
    """200 times in all, over failed and committed turns; never a false SessionBusy."""
    session = await cluster.session(node)
    for number in range(100):
        submitted = await cluster.submit(
            node, session, f"{number}" + ("\n!fail after" if number % 5 == 4 else "")
        )
        if how == "watch":
            events = [event async for event in submitted.events()]
            assert events[0].kind is EventKind.ATTEMPT_STARTED
        else:
            await cluster.outcome(node, submitted)
    assert (await cluster.get(session)).turns == 80


async def test_M3_5_also_where_the_stream_is_read_on_another_node(cluster: Cluster, node: Lastgood) -> None:
    other = await cluster.node("other")
    session = await cluster.session(node)
    nodes = (node, other)
    for number in range(20):
        before = (await cluster.get(session)).last_event_seq
        submitted = await cluster.submit(nodes[number % 2], session, f"{number}")
        far = nodes[1 - number % 2].turns.handle(
            DEFAULT_TENANT, session, submitted.turn, present(submitted.attempt), before
        )
        assert [e.kind async for e in far.events()][-2] is EventKind.TURN_COMMITTED


# -- titles: M3.7 --------------------------------------------------------------------


async def titled(cluster: Cluster, model: TitleModel, *tools: Gate) -> Lastgood:
    gates = [gate_tool(gate) for gate in tools]
    agent = cluster.agent(title_model=TITLES, tools=tuple(tool.name for tool in gates))
    return await cluster.node(agents=[agent], tools=gates, providers={TITLES: model})


async def test_M3_7_without_a_title_model_the_first_words_are_the_title(
    cluster: Cluster, node: Lastgood
) -> None:
    session = await cluster.session(node)
    await cluster.good(node, session, "  the quick\n\nbrown fox  ", "jumps")
    await cluster.quiet(node)
    found = await cluster.get(session)
    assert (found.title, found.title_by) == ("the quick brown fox", TitleBy.US)
    await cluster.good(node, session, "something else")
    await cluster.quiet(node)
    assert (await cluster.get(session)).title == "the quick brown fox"


async def test_M3_7_a_title_model_is_asked_beside_the_turn(cluster: Cluster) -> None:
    """It has been asked while the turn still runs, and it sees what the user said and nothing else."""
    at_title, at_tool = Gate(), Gate()
    model = TitleModel("A  fine\ntitle", at_title)
    node = await titled(cluster, model, at_tool)
    session = await cluster.session(node)
    running = await cluster.submit(node, session, "first", "!tool gate {}")
    await at_tool.until_reached()
    await at_title.until_reached()
    at_title.open()
    at_tool.open()
    await cluster.outcome(node, running)
    await cluster.quiet(node)
    found = await cluster.get(session)
    assert (found.title, found.title_by, found.turns) == ("A fine title", TitleBy.US, 1)
    assert [message.content for message in model.prompts[0][1:]] == ["first", "!tool gate {}"]
    assert len(model.prompts) == 1


async def test_M3_7_a_slow_title_model_delays_nothing(cluster: Cluster) -> None:
    gate = Gate()
    node = await titled(cluster, TitleModel("later", gate))
    session = await cluster.session(node)
    await cluster.good(node, session, "one")
    await gate.until_reached()
    assert (await cluster.get(session)).title == ""
    await cluster.good(node, session, "two")
    assert (await cluster.get(session)).turns == 2
    gate.open()
    await cluster.quiet(node)
    assert (await cluster.get(session)).title == "later"


async def test_M3_7_a_persons_title_is_never_replaced(cluster: Cluster) -> None:
    gate = Gate()
    node = await titled(cluster, TitleModel("ours", gate))
    session = await cluster.session(node)
    await cluster.good(node, session, "one")
    await gate.until_reached()
    await node.sessions.rename(DEFAULT_TENANT, session, "mine")
    await node.sessions.star(DEFAULT_TENANT, session, True)
    await node.sessions.set_metadata(DEFAULT_TENANT, session, {"a": 1})
    gate.open()
    await cluster.quiet(node)
    found = await cluster.get(session)
    assert (found.title, found.title_by, found.starred, found.metadata) == (
        "mine",
        TitleBy.PERSON,
        True,
        {"a": 1},
    )


async def test_M3_7_a_session_that_was_created_with_a_title_keeps_it(cluster: Cluster) -> None:
    model = TitleModel("ours")
    node = await titled(cluster, model)
    session = await cluster.session(node, title="mine")
    await cluster.good(node, session, "one")
    await cluster.quiet(node)
    assert (await cluster.get(session)).title == "mine"
    assert model.prompts == []


@pytest.mark.parametrize(
    "says",
    [
        ModelError("no title today"),
        "",
        " \n ",
        RuntimeError("a provider's own error"),
    ],
    ids=["fails", "empty", "blank", "breaks"],
)
async def test_M3_7_a_title_model_that_fails_leaves_the_first_words(
    cluster: Cluster, says: str | Exception
) -> None:
    node = await titled(cluster, TitleModel(says))
    session = await cluster.session(node)
    assert (await cluster.say(node, session, "the first words")).status is AttemptStatus.COMMITTED
    await cluster.quiet(node)
    assert (await cluster.get(session)).title == "the first words"


async def test_M3_7_a_failed_first_turn_gives_no_title_and_the_next_good_one_does(cluster: Cluster) -> None:
    model = TitleModel("a title")
    node = await titled(cluster, model)
    session = await cluster.session(node)
    await cluster.say(node, session, "bad\n!fail after")
    await cluster.quiet(node)
    assert (await cluster.get(session)).title == ""
    await cluster.good(node, session, "good")
    await cluster.quiet(node)
    assert (await cluster.get(session)).title == "a title"
    assert [message.content for message in model.prompts[-1][1:]] == ["good"]


async def test_M3_7_a_title_of_a_deleted_session_is_nowhere(cluster: Cluster) -> None:
    gate = Gate()
    node = await titled(cluster, TitleModel("late", gate))
    session = await cluster.session(node)
    await cluster.good(node, session, "one")
    await gate.until_reached()
    await node.sessions.delete(DEFAULT_TENANT, session)
    gate.open()
    await cluster.quiet(node)
    assert await cluster.backend.rows("SELECT * FROM events") == []
    assert await cluster.backend.rows("SELECT * FROM sessions") == []


# -- several messages, deleting, slow agents: M3.8 and beyond ---------------------------


async def test_M3_several_messages_of_one_request_are_all_kept(
    cluster: Cluster, world: World, node: Lastgood
) -> None:
    session = await world.create(node)
    await world.ask(node, session, "three", "tok1", more=["one", "two"])
    turn = (await cluster.turns(session))[0]
    assert turn.messages[:3] == (user("one"), user("two"), user("tok1 three"))
    await world.ask(node, session, "next", "tok2")
    assert cluster.last_prompt == [
        ("user", "one"),
        ("user", "two"),
        ("user", "tok1 three"),
        ("assistant", "You said: tok1 three"),
        ("user", "tok2 next"),
    ]


@pytest.mark.parametrize("where_from", ["here", "another node"])
async def test_M3_8_deleting_a_session_cancels_its_run(cluster: Cluster, where_from: str) -> None:
    """I15: nothing of it appears again."""
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    other = await cluster.node("other", tools=[gate_tool(gate)])
    session = await cluster.session(node)
    await cluster.good(node, session, "one")
    running = await cluster.submit(node, session, "!tool gate {}\n!say too late")
    await gate.until_reached()
    await (node if where_from == "here" else other).sessions.delete(DEFAULT_TENANT, session)
    gate.open()
    outcome = await cluster.outcome(node, running)
    assert outcome.status in (AttemptStatus.CANCELLED, AttemptStatus.INTERRUPTED)
    assert outcome.turn is None
    await cluster.quiet(node)
    for table in ("sessions", "turns", "attempts", "requests", "events", "steps"):
        assert await cluster.backend.rows(f"SELECT * FROM {table}") == [], table
    for use in (node.sessions.read, node.sessions.attempts, node.sessions.delete, node.turns.cancel):
        with pytest.raises(SessionNotFound):
            await use(DEFAULT_TENANT, session)


class SlowAgents:
    """One of its agents takes as long to load as its gate is shut."""

    def __init__(self, agents: Sequence[AgentSpec], slow: str, gate: Gate) -> None:
        self._agents = {agent.key: agent for agent in agents}
        self._slow = slow
        self._gate = gate

    def served(self) -> Sequence[str]:
        return tuple(self._agents)

    def origin(self, key: str) -> AgentOrigin:
        return AgentOrigin("built-in", key)

    async def load(self, key: str, name: str | None = None) -> AgentSpec:
        if key == self._slow:
            await self._gate()
        return self._agents[key]


async def test_M3_a_slow_agent_blocks_only_its_own_session(cluster: Cluster) -> None:
    gate = Gate()
    agents = [cluster.agent("slow"), cluster.agent("fast")]
    node = await cluster.node(served=SlowAgents(agents, "slow", gate))
    slow, fast = await cluster.session(node, "slow"), await cluster.session(node, "fast")
    waiting = asyncio.create_task(cluster.good(node, slow, "one"))
    await gate.until_reached()
    for number in range(5):
        await cluster.good(node, fast, f"{number}")
    assert (await node.sessions.read(DEFAULT_TENANT, slow)).turns == ()
    assert await cluster.attempts(slow) == ()
    assert not waiting.done()
    gate.open()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await waiting).agent_key == "slow"


async def test_M3_1_only_one_of_those_who_waited_for_a_slow_agent_runs(cluster: Cluster) -> None:
    """Loading holds nothing: the begin decides."""
    loading, working = Gate(), Gate()
    tool = gate_tool(working)
    agents = [cluster.agent("slow", tools=("gate",))]
    node = await cluster.node(served=SlowAgents(agents, "slow", loading), tools=[tool])
    session = await cluster.session(node, "slow")
    asked = [asyncio.create_task(cluster.submit(node, session, f"{n}\n!tool gate {{}}")) for n in range(4)]
    await loading.until_reached()
    loading.open()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(one, TurnHandle) for one in found) == 1
    working.open()
    await cluster.until_free(session)
    assert (await cluster.get(session)).turns == 1
