"""M3: running a session: overrides, releasing, titles, several messages, deleting, slow agents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from lastgood.errors import InvalidRequest, ModelError, ModelUnknown, SessionNotFound, StoreUnavailable
from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.agents import AgentSpec
from lastgood.model.attempts import AttemptStatus
from lastgood.model.events import EventKind
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.messages import user
from lastgood.model.sessions import TitleBy
from lastgood.wiring import Lastgood
from tests.contract.conftest import dump
from tests.faults.faults import Mode
from tests.faults.world import AGENT, OTHER_MODEL, World
from tests.flows.house import PATIENCE_SECONDS, Gate, House, TitleModel, gate_tool
from tests.present import present

pytestmark = pytest.mark.anyio

TITLES = "builtin/titles"


# -- overrides: M3.2, M3.3, M3.4 --------------------------------------------------


@pytest.mark.parametrize("model", ["nobody/knows", "noslash", "", "builtin/scripted\x00", "x/\ud800"])
async def test_M3_2_a_bad_override_leaves_no_trace(
    house: House, world: World, node: Lastgood, model: str
) -> None:
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    await house.quiet(node)
    before = await dump(house.backend)
    with pytest.raises(InvalidRequest) as refused:
        await house.submit(node, session, "two", model=model)
    if "\x00" not in model and "\ud800" not in model:
        assert refused.type is ModelUnknown
    assert await dump(house.backend) == before
    assert len(world.prompts) == 1


@pytest.mark.parametrize("model", ["nobody/knows", "x/\ud800"])
async def test_M3_2_a_bad_override_with_a_key_is_refused_alike(
    house: House, node: Lastgood, model: str
) -> None:
    session = await house.session(node)
    with pytest.raises(InvalidRequest):
        await house.submit(node, session, "two", model=model, key="k")
    assert await house.attempts(session) == ()


async def test_M3_3_an_override_holds_until_there_is_another(
    house: House, world: World, node: Lastgood
) -> None:
    session = await world.create(node)
    asked = [None, OTHER_MODEL, None, AGENT, None]
    for number, model in enumerate(asked):
        told = await world.ask(node, session, "hello", f"tok{number}", model=model)
        assert told.outcome == "committed"
    ran = [AGENT, OTHER_MODEL, OTHER_MODEL, AGENT, AGENT]
    assert [turn.model for turn in await house.turns(session)] == ran
    assert [attempt.model for attempt in await house.attempts(session)] == ran
    assert [record["model"] for record in world.prompts] == ran
    assert (await house.get(session)).model == AGENT


async def test_M3_3_an_override_survives_a_restart(house: House, world: World, node: Lastgood) -> None:
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1", model=OTHER_MODEL)
    await house.stop(node)
    await house.reopen()
    node = await house.node("next", alone=True)
    await world.ask(node, session, "and now", "tok2")
    assert [record["model"] for record in world.prompts] == [OTHER_MODEL, OTHER_MODEL]


@pytest.mark.parametrize("before", [None, AGENT])
async def test_M3_4_a_failed_turn_leaves_no_override(
    house: House, world: World, node: Lastgood, before: str | None
) -> None:
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1", model=before)
    for number, when in enumerate(("before", "during", "after")):
        await world.ask(node, session, f"\n!fail {when}", f"bad{number}", model=OTHER_MODEL)
        assert (await house.get(session)).model == before
    await world.ask(node, session, "again", "tok2")
    assert world.prompts[-1]["model"] == AGENT


@pytest.mark.parametrize("point", ["store.begin_if_free", "store.commit_if_head"])
async def test_M3_4_a_failed_write_leaves_no_override(
    house: House, world: World, node: Lastgood, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(FlowLimits, "outage_seconds", 0.1)
    session = await world.create(node)
    await world.ask(node, session, "hello", "tok1")
    before = await house.get(session)
    house.strike(node, point, Mode.RAISE, always=True)
    told = await world.ask(node, session, "two", "tok2", model=OTHER_MODEL)
    house.heal(node)
    assert told.code == StoreUnavailable.code
    after = await house.get(session)
    assert (after.model, after.head, after.attempt) == (None, before.head, None)
    await world.ask(node, session, "again", "tok3")
    assert world.prompts[-1]["model"] == AGENT


# -- releasing: M3.5 ----------------------------------------------------------------


@pytest.mark.parametrize("how", ["watch", "wait"])
async def test_M3_5_whoever_has_read_to_the_end_may_ask_again_at_once(
    house: House, node: Lastgood, how: str
) -> None:
    """200 times in all, over failed and committed turns; never a false SessionBusy."""
    session = await house.session(node)
    for number in range(100):
        submitted = await house.submit(
            node, session, f"{number}" + ("\n!fail after" if number % 5 == 4 else "")
        )
        if how == "watch":
            events = [event async for event in submitted.events()]
            assert events[0].kind is EventKind.ATTEMPT_STARTED
        else:
            await house.outcome(node, submitted)
    assert (await house.get(session)).turns == 80


async def test_M3_5_also_where_the_stream_is_read_on_another_node(house: House, node: Lastgood) -> None:
    other = await house.node("other")
    session = await house.session(node)
    nodes = (node, other)
    for number in range(20):
        before = (await house.get(session)).last_event_seq
        submitted = await house.submit(nodes[number % 2], session, f"{number}")
        far = nodes[1 - number % 2].turns.handle(
            DEFAULT_TENANT, session, submitted.turn, present(submitted.attempt), before
        )
        assert [e.kind async for e in far.events()][-2] is EventKind.TURN_COMMITTED


# -- titles: M3.7 --------------------------------------------------------------------


async def titled(house: House, model: TitleModel, *tools: Gate) -> Lastgood:
    gates = [gate_tool(gate) for gate in tools]
    agent = house.agent(title_model=TITLES, tools=tuple(tool.name for tool in gates))
    return await house.node(agents=[agent], tools=gates, providers={TITLES: model})


async def test_M3_7_without_a_title_model_the_first_words_are_the_title(house: House, node: Lastgood) -> None:
    session = await house.session(node)
    await house.good(node, session, "  the quick\n\nbrown fox  ", "jumps")
    await house.quiet(node)
    found = await house.get(session)
    assert (found.title, found.title_by) == ("the quick brown fox", TitleBy.US)
    await house.good(node, session, "something else")
    await house.quiet(node)
    assert (await house.get(session)).title == "the quick brown fox"


async def test_M3_7_a_title_model_is_asked_beside_the_turn(house: House) -> None:
    """It has been asked while the turn still runs, and it sees what the user said and nothing else."""
    at_title, at_tool = Gate(), Gate()
    model = TitleModel("A  fine\ntitle", at_title)
    node = await titled(house, model, at_tool)
    session = await house.session(node)
    running = await house.submit(node, session, "first", "!tool gate {}")
    await at_tool.until_reached()
    await at_title.until_reached()
    at_title.open()
    at_tool.open()
    await house.outcome(node, running)
    await house.quiet(node)
    found = await house.get(session)
    assert (found.title, found.title_by, found.turns) == ("A fine title", TitleBy.US, 1)
    assert [message.content for message in model.prompts[0][1:]] == ["first", "!tool gate {}"]
    assert len(model.prompts) == 1


async def test_M3_7_a_slow_title_model_delays_nothing(house: House) -> None:
    gate = Gate()
    node = await titled(house, TitleModel("later", gate))
    session = await house.session(node)
    await house.good(node, session, "one")
    await gate.until_reached()
    assert (await house.get(session)).title == ""
    await house.good(node, session, "two")
    assert (await house.get(session)).turns == 2
    gate.open()
    await house.quiet(node)
    assert (await house.get(session)).title == "later"


async def test_M3_7_a_persons_title_is_never_replaced(house: House) -> None:
    gate = Gate()
    node = await titled(house, TitleModel("ours", gate))
    session = await house.session(node)
    await house.good(node, session, "one")
    await gate.until_reached()
    await node.sessions.rename(DEFAULT_TENANT, session, "mine")
    await node.sessions.star(DEFAULT_TENANT, session, True)
    await node.sessions.set_metadata(DEFAULT_TENANT, session, {"a": 1})
    gate.open()
    await house.quiet(node)
    found = await house.get(session)
    assert (found.title, found.title_by, found.starred, found.metadata) == (
        "mine",
        TitleBy.PERSON,
        True,
        {"a": 1},
    )


async def test_M3_7_a_session_that_was_created_with_a_title_keeps_it(house: House) -> None:
    model = TitleModel("ours")
    node = await titled(house, model)
    session = await house.session(node, title="mine")
    await house.good(node, session, "one")
    await house.quiet(node)
    assert (await house.get(session)).title == "mine"
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
    house: House, says: str | Exception
) -> None:
    node = await titled(house, TitleModel(says))
    session = await house.session(node)
    assert (await house.say(node, session, "the first words")).status is AttemptStatus.COMMITTED
    await house.quiet(node)
    assert (await house.get(session)).title == "the first words"


async def test_M3_7_a_failed_first_turn_gives_no_title_and_the_next_good_one_does(house: House) -> None:
    model = TitleModel("a title")
    node = await titled(house, model)
    session = await house.session(node)
    await house.say(node, session, "bad\n!fail after")
    await house.quiet(node)
    assert (await house.get(session)).title == ""
    await house.good(node, session, "good")
    await house.quiet(node)
    assert (await house.get(session)).title == "a title"
    assert [message.content for message in model.prompts[-1][1:]] == ["good"]


async def test_M3_7_a_title_of_a_deleted_session_is_nowhere(house: House) -> None:
    gate = Gate()
    node = await titled(house, TitleModel("late", gate))
    session = await house.session(node)
    await house.good(node, session, "one")
    await gate.until_reached()
    await node.sessions.delete(DEFAULT_TENANT, session)
    gate.open()
    await house.quiet(node)
    assert await house.backend.rows("SELECT * FROM events") == []
    assert await house.backend.rows("SELECT * FROM sessions") == []


# -- several messages, deleting, slow agents: M3.8 and beyond ---------------------------


async def test_M3_several_messages_of_one_request_are_all_kept(
    house: House, world: World, node: Lastgood
) -> None:
    session = await world.create(node)
    await world.ask(node, session, "three", "tok1", more=["one", "two"])
    turn = (await house.turns(session))[0]
    assert turn.messages[:3] == (user("one"), user("two"), user("tok1 three"))
    await world.ask(node, session, "next", "tok2")
    assert house.last_prompt == [
        ("user", "one"),
        ("user", "two"),
        ("user", "tok1 three"),
        ("assistant", "You said: tok1 three"),
        ("user", "tok2 next"),
    ]


@pytest.mark.parametrize("where_from", ["here", "another node"])
async def test_M3_8_deleting_a_session_cancels_its_run(house: House, where_from: str) -> None:
    """I15: nothing of it appears again."""
    gate = Gate()
    node = await house.node(tools=[gate_tool(gate)])
    other = await house.node("other", tools=[gate_tool(gate)])
    session = await house.session(node)
    await house.good(node, session, "one")
    running = await house.submit(node, session, "!tool gate {}\n!say too late")
    await gate.until_reached()
    await (node if where_from == "here" else other).sessions.delete(DEFAULT_TENANT, session)
    gate.open()
    outcome = await house.outcome(node, running)
    assert outcome.status in (AttemptStatus.CANCELLED, AttemptStatus.INTERRUPTED)
    assert outcome.turn is None
    await house.quiet(node)
    for table in ("sessions", "turns", "attempts", "requests", "events", "steps"):
        assert await house.backend.rows(f"SELECT * FROM {table}") == [], table
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

    async def load(self, key: str, name: str | None = None) -> AgentSpec:
        if key == self._slow:
            await self._gate()
        return self._agents[key]


async def test_M3_a_slow_agent_blocks_only_its_own_session(house: House) -> None:
    gate = Gate()
    agents = [house.agent("slow"), house.agent("fast")]
    node = await house.node(served=SlowAgents(agents, "slow", gate))
    slow, fast = await house.session(node, "slow"), await house.session(node, "fast")
    waiting = asyncio.create_task(house.good(node, slow, "one"))
    await gate.until_reached()
    for number in range(5):
        await house.good(node, fast, f"{number}")
    assert (await node.sessions.read(DEFAULT_TENANT, slow)).turns == ()
    assert await house.attempts(slow) == ()
    assert not waiting.done()
    gate.open()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await waiting).agent_key == "slow"


async def test_M3_1_only_one_of_those_who_waited_for_a_slow_agent_runs(house: House) -> None:
    """Loading holds nothing: the begin decides."""
    loading, working = Gate(), Gate()
    tool = gate_tool(working)
    agents = [house.agent("slow", tools=("gate",))]
    node = await house.node(served=SlowAgents(agents, "slow", loading), tools=[tool])
    session = await house.session(node, "slow")
    asked = [asyncio.create_task(house.submit(node, session, f"{n}\n!tool gate {{}}")) for n in range(4)]
    await loading.until_reached()
    loading.open()
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(one, TurnHandle) for one in found) == 1
    working.open()
    await house.until_free(session)
    assert (await house.get(session)).turns == 1
