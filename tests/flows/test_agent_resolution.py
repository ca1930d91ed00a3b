"""M1: a session finds its agent again, or says why not; the same before and after a restart."""

from urllib.parse import quote_plus

import pytest

from lastgood.errors import AgentNotFound, SessionBusy
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.wiring import Lastgood
from tests.contract.conftest import dump
from tests.faults.world import World
from tests.flows.house import Gate, House, gate_tool

pytestmark = pytest.mark.anyio

TEAM = "https://agents.example.com/team.yaml"
LIGHT, DEV, PLAIN = (quote_plus(TEAM + query) for query in ("?tag=v9-light", "?tag=v9-dev&x=1", ""))
ELSEWHERE = quote_plus("https://agents.example.com/other.yaml?tag=v9-light")


async def relaunch(house: House, old: Lastgood, *keys: str) -> Lastgood:
    """The same database, another process, other sources. The digest of an agent tells its key."""
    await house.stop(old)
    await house.reopen()
    return await serve(house, *keys)


async def serve(house: House, *keys: str) -> Lastgood:
    agents = [house.agent(key, digest=f"sha256:{key}", name=key[-8:]) for key in keys]
    return await house.node("relaunched", agents=agents, alone=True)


async def a_session(house: House, node: Lastgood, key: str) -> SessionId:
    session = await house.session(node, key)
    await house.good(node, session, "one")
    return session


async def test_M1_1_an_exact_key_wins_over_one_that_differs_in_its_query(house: House) -> None:
    node = await serve(house, LIGHT, DEV, PLAIN)
    for key in (LIGHT, DEV, PLAIN):
        turn = await house.good(node, await house.session(node, key), "hello")
        assert (turn.agent_key, turn.agent_digest) == (key, f"sha256:{key}")
        assert (turn.decision["agent"], turn.decision["key"]) == ("exact", key)


@pytest.mark.parametrize("now", [DEV, PLAIN, quote_plus(TEAM + "#part"), TEAM + "?tag=unescaped"])
async def test_M1_2_a_relaunch_with_another_query_goes_on(house: House, now: str) -> None:
    node = await serve(house, LIGHT, ELSEWHERE)
    session = await a_session(house, node, LIGHT)
    node = await relaunch(house, node, now, ELSEWHERE)
    outcome = await house.say(node, session, "two")
    assert outcome.turn is not None
    assert house.last_prompt == [("user", "one"), ("assistant", "You said: one"), ("user", "two")]
    stored = (await house.turns(session))[-1]
    attempt = await house.attempt(outcome.attempt)
    for recorded in (stored, attempt):
        assert (recorded.agent_key, recorded.agent_digest) == (now, f"sha256:{now}")
        assert recorded.decision["agent"] == "stable"
        assert (recorded.decision["recorded"], recorded.decision["key"]) == (LIGHT, now)
        assert recorded.decision["reason"]
    assert (await house.get(session)).agent_key == LIGHT


@pytest.mark.parametrize(
    "other",
    [
        ELSEWHERE,
        quote_plus("http://agents.example.com/team.yaml?tag=v9-light"),
        quote_plus("https://agents.example.com:8443/team.yaml?tag=v9-light"),
        quote_plus("https://agents.example.org/team.yaml?tag=v9-light"),
        "team",
    ],
)
async def test_M1_2_another_scheme_host_port_or_path_is_another_agent(house: House, other: str) -> None:
    node = await serve(house, LIGHT)
    session = await a_session(house, node, LIGHT)
    node = await relaunch(house, node, other)
    with pytest.raises(AgentNotFound) as refused:
        await house.submit(node, session, "two")
    assert refused.value.detail["agent"] == "missing"
    assert refused.value.detail["recorded"] == LIGHT


async def test_M1_2_what_is_no_url_is_its_own_identity(house: House) -> None:
    node = await serve(house, "team?tag=a", "100%?x")
    for key in ("team?tag=a", "100%?x"):
        session = await a_session(house, node, key)
        node = await relaunch(house, node, "team?tag=b", "100%?y")
        with pytest.raises(AgentNotFound):
            await house.submit(node, session, "two")
        node = await relaunch(house, node, "team?tag=a", "100%?x")


async def test_M1_3_two_variants_are_refused_by_name_before_and_after_a_restart(house: House) -> None:
    """Also M1.4: what happens to be in memory changes nothing."""
    first = await serve(house, LIGHT)
    session = await a_session(house, first, LIGHT)
    node = await relaunch(house, first, DEV, PLAIN, ELSEWHERE)
    seen = []
    for _ in range(2):
        before, prompts = await dump(house.backend), len(house.world.prompts)
        with pytest.raises(AgentNotFound) as refused:
            await house.submit(node, session, "two")
        assert refused.value.detail["agent"] == "ambiguous"
        assert refused.value.detail["candidates"] == sorted([DEV, PLAIN])
        assert all(key in refused.value.message for key in (DEV, PLAIN))
        assert ELSEWHERE not in refused.value.message
        assert await dump(house.backend) == before, "a refusal was stored"
        assert len(house.world.prompts) == prompts
        seen.append((refused.value.message, refused.value.detail))
        node = await relaunch(house, node, PLAIN, DEV, ELSEWHERE)
    assert seen[0] == seen[1]


async def test_M1_4_a_warm_history_does_not_hide_that_the_agent_is_gone(house: House) -> None:
    """The node that ran the session a moment ago answers like one that has just started."""
    node = await serve(house, LIGHT)
    session = await a_session(house, node, LIGHT)
    answers = []
    for served in ((DEV, PLAIN), ()):
        warm = await house.node("warm", agents=[house.agent(LIGHT)])
        await house.good(warm, session, "warm it")
        catalog = await house.node("other", agents=[house.agent(key) for key in served])
        warm.deps.agents._agents = catalog.deps.agents._agents  # type: ignore[attr-defined]
        for asked in (warm, catalog):
            with pytest.raises(AgentNotFound) as refused:
                await house.submit(asked, session, "two")
            answers.append((refused.value.message, refused.value.detail))
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert answers[2][1]["agent"] == "missing"


async def test_M1_5_listing_and_reading_need_no_agent(house: House) -> None:
    node = await serve(house, LIGHT)
    session = await a_session(house, node, LIGHT)
    node = await relaunch(house, node)
    page = await node.sessions.list(DEFAULT_TENANT)
    assert [found.id for found in page.sessions] == [session]
    whole = await node.sessions.read(DEFAULT_TENANT, session)
    assert [message.content for message in whole.turns[0].messages] == ["one", "You said: one"]
    assert len(await node.sessions.attempts(DEFAULT_TENANT, session)) == 1
    assert (await node.sessions.read(DEFAULT_TENANT, session)).chain.damage is None
    fork = await node.sessions.fork(DEFAULT_TENANT, session)
    await node.sessions.rename(DEFAULT_TENANT, session, "still there")
    await node.sessions.delete(DEFAULT_TENANT, fork.id)
    with pytest.raises(AgentNotFound):
        await house.submit(node, session, "two")


async def test_M1_the_version_that_answered_is_recorded_with_each_turn(house: House) -> None:
    node = await house.node(agents=[house.agent(LIGHT, digest="sha256:1")])
    session = await house.session(node, LIGHT)
    await house.good(node, session, "one")
    for number, digest in enumerate(("sha256:2", "sha256:3"), 2):
        await house.stop(node)
        node = await house.node(agents=[house.agent(LIGHT, digest=digest)])
        await house.good(node, session, f"turn {number}")
    assert [turn.agent_digest for turn in await house.turns(session)] == ["sha256:1", "sha256:2", "sha256:3"]
    assert [attempt.agent_digest for attempt in await house.attempts(session)] == [
        "sha256:1",
        "sha256:2",
        "sha256:3",
    ]


async def test_M1_a_failed_attempt_has_its_decision_too(house: House) -> None:
    node = await serve(house, DEV)
    session = await house.session(node, LIGHT)
    outcome = await house.say(node, session, "!fail before")
    attempt = await house.attempt(outcome.attempt)
    assert (attempt.decision["agent"], attempt.agent_digest) == ("stable", f"sha256:{DEV}")


async def test_M1_a_rebound_session_goes_on_with_the_other_agent(house: House) -> None:
    node = await serve(house, LIGHT, ELSEWHERE)
    session = await a_session(house, node, LIGHT)
    node = await relaunch(house, node, DEV, PLAIN)
    with pytest.raises(AgentNotFound):
        await house.submit(node, session, "two")
    await node.sessions.rebind(DEFAULT_TENANT, session, PLAIN)
    turn = await house.good(node, session, "two")
    assert (turn.agent_key, turn.decision["agent"]) == (PLAIN, "exact")
    assert house.last_prompt == [("user", "one"), ("assistant", "You said: one"), ("user", "two")]
    assert (await house.get(session)).agent_key == PLAIN


async def test_M1_an_agent_named_in_a_request_holds_for_that_turn_alone(house: House) -> None:
    node = await serve(house, LIGHT, ELSEWHERE)
    session = await a_session(house, node, LIGHT)
    assert (await house.good(node, session, "two", agent_key=ELSEWHERE)).agent_key == ELSEWHERE
    assert (await house.good(node, session, "three")).agent_key == LIGHT


async def test_M1_a_busy_session_is_not_rebound(house: House, world: World) -> None:
    gate = Gate()
    node = await house.node(tools=[gate_tool(gate)])
    session = await house.session(node)
    running = await house.submit(node, session, "!tool gate {}")
    await gate.until_reached()
    with pytest.raises(SessionBusy):
        await node.sessions.rebind(DEFAULT_TENANT, session, "another")
    gate.open()
    assert (await house.outcome(node, running)).turn is not None
    assert (await house.get(session)).agent_key == "builtin/scripted"
