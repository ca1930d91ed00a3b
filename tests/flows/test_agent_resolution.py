"""M1: a session finds its agent again, or says why not; the same before and after a restart."""

from urllib.parse import quote_plus

import pytest

from lastgood.errors import AgentNotFound, SessionBusy
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.wiring import Lastgood
from tests.contract.conftest import dump
from tests.faults.world import World
from tests.flows.cluster import Cluster, Gate, gate_tool

pytestmark = pytest.mark.anyio

TEAM = "https://agents.example.com/team.yaml"
LIGHT, DEV, PLAIN = (quote_plus(TEAM + query) for query in ("?tag=v9-light", "?tag=v9-dev&x=1", ""))
ELSEWHERE = quote_plus("https://agents.example.com/other.yaml?tag=v9-light")


async def relaunch(cluster: Cluster, old: Lastgood, *keys: str) -> Lastgood:
    """The same database, another process, other sources. The digest of an agent tells its key."""
    await cluster.stop(old)
    await cluster.reopen()
    return await serve(cluster, *keys)


async def serve(cluster: Cluster, *keys: str) -> Lastgood:
    agents = [cluster.agent(key, digest=f"sha256:{key}", name=key[-8:]) for key in keys]
    return await cluster.node("relaunched", agents=agents, alone=True)


async def a_session(cluster: Cluster, node: Lastgood, key: str) -> SessionId:
    session = await cluster.session(node, key)
    await cluster.good(node, session, "one")
    return session


async def test_M1_1_an_exact_key_wins_over_one_that_differs_in_its_query(cluster: Cluster) -> None:
    node = await serve(cluster, LIGHT, DEV, PLAIN)
    for key in (LIGHT, DEV, PLAIN):
        turn = await cluster.good(node, await cluster.session(node, key), "hello")
        assert (turn.agent_key, turn.agent_digest) == (key, f"sha256:{key}")
        assert (turn.decision["agent"], turn.decision["key"]) == ("exact", key)


@pytest.mark.parametrize("now", [DEV, PLAIN, quote_plus(TEAM + "#part"), TEAM + "?tag=unescaped"])
async def test_M1_2_a_relaunch_with_another_query_continues(cluster: Cluster, now: str) -> None:
    node = await serve(cluster, LIGHT, ELSEWHERE)
    session = await a_session(cluster, node, LIGHT)
    node = await relaunch(cluster, node, now, ELSEWHERE)
    outcome = await cluster.say(node, session, "two")
    assert outcome.turn is not None
    assert cluster.last_prompt == [("user", "one"), ("assistant", "You said: one"), ("user", "two")]
    stored = (await cluster.turns(session))[-1]
    attempt = await cluster.attempt(outcome.attempt)
    for recorded in (stored, attempt):
        assert (recorded.agent_key, recorded.agent_digest) == (now, f"sha256:{now}")
        assert recorded.decision["agent"] == "stable"
        assert (recorded.decision["recorded"], recorded.decision["key"]) == (LIGHT, now)
        assert recorded.decision["reason"]
    assert (await cluster.get(session)).agent_key == LIGHT


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
async def test_M1_2_another_scheme_host_port_or_path_is_another_agent(cluster: Cluster, other: str) -> None:
    node = await serve(cluster, LIGHT)
    session = await a_session(cluster, node, LIGHT)
    node = await relaunch(cluster, node, other)
    with pytest.raises(AgentNotFound) as refused:
        await cluster.submit(node, session, "two")
    assert refused.value.detail["agent"] == "missing"
    assert refused.value.detail["recorded"] == LIGHT


async def test_M1_2_a_key_that_is_not_a_url_is_its_own_identity(cluster: Cluster) -> None:
    node = await serve(cluster, "team?tag=a", "100%?x")
    for key in ("team?tag=a", "100%?x"):
        session = await a_session(cluster, node, key)
        node = await relaunch(cluster, node, "team?tag=b", "100%?y")
        with pytest.raises(AgentNotFound):
            await cluster.submit(node, session, "two")
        node = await relaunch(cluster, node, "team?tag=a", "100%?x")


async def test_M1_3_two_variants_are_refused_by_name_before_and_after_a_restart(cluster: Cluster) -> None:
    """Also M1.4: what happens to be in memory changes nothing."""
    first = await serve(cluster, LIGHT)
    session = await a_session(cluster, first, LIGHT)
    node = await relaunch(cluster, first, DEV, PLAIN, ELSEWHERE)
    seen = []
    for _ in range(2):
        before, prompts = await dump(cluster.backend), len(cluster.world.prompts)
        with pytest.raises(AgentNotFound) as refused:
            await cluster.submit(node, session, "two")
        assert refused.value.detail["agent"] == "ambiguous"
        assert refused.value.detail["candidates"] == sorted([DEV, PLAIN])
        assert all(key in refused.value.message for key in (DEV, PLAIN))
        assert ELSEWHERE not in refused.value.message
        assert await dump(cluster.backend) == before, "a refusal was stored"
        assert len(cluster.world.prompts) == prompts
        seen.append((refused.value.message, refused.value.detail))
        node = await relaunch(cluster, node, PLAIN, DEV, ELSEWHERE)
    assert seen[0] == seen[1]


async def test_M1_4_a_warm_history_does_not_hide_that_the_agent_is_gone(cluster: Cluster) -> None:
    """The node that ran the session a moment ago answers like one that has just started."""
    node = await serve(cluster, LIGHT)
    session = await a_session(cluster, node, LIGHT)
    await cluster.stop(node)
    answers = []
    for served in ((DEV, PLAIN), ()):
        warm = await cluster.node("warm", agents=[cluster.agent(LIGHT)])
        await cluster.good(warm, session, "warm it")
        catalog = await cluster.node("other", agents=[cluster.agent(key) for key in served])
        vars(warm.deps.agents).update(vars(catalog.deps.agents))  # what it serves, and its index of that
        for asked in (warm, catalog):
            with pytest.raises(AgentNotFound) as refused:
                await cluster.submit(asked, session, "two")
            answers.append((refused.value.message, refused.value.detail))
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert answers[2][1]["agent"] == "missing"


async def test_M1_5_listing_and_reading_need_no_agent(cluster: Cluster) -> None:
    node = await serve(cluster, LIGHT)
    session = await a_session(cluster, node, LIGHT)
    node = await relaunch(cluster, node)
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
        await cluster.submit(node, session, "two")


async def test_M1_the_version_that_answered_is_recorded_with_each_turn(cluster: Cluster) -> None:
    node = await cluster.node(agents=[cluster.agent(LIGHT, digest="sha256:1")])
    session = await cluster.session(node, LIGHT)
    await cluster.good(node, session, "one")
    for number, digest in enumerate(("sha256:2", "sha256:3"), 2):
        await cluster.stop(node)
        node = await cluster.node(agents=[cluster.agent(LIGHT, digest=digest)])
        await cluster.good(node, session, f"turn {number}")
    assert [turn.agent_digest for turn in await cluster.turns(session)] == [
        "sha256:1",
        "sha256:2",
        "sha256:3",
    ]
    assert [attempt.agent_digest for attempt in await cluster.attempts(session)] == [
        "sha256:1",
        "sha256:2",
        "sha256:3",
    ]


async def test_M1_a_failed_attempt_has_its_decision_too(cluster: Cluster) -> None:
    node = await serve(cluster, DEV)
    session = await cluster.session(node, LIGHT)
    outcome = await cluster.say(node, session, "!fail before")
    attempt = await cluster.attempt(outcome.attempt)
    assert (attempt.decision["agent"], attempt.agent_digest) == ("stable", f"sha256:{DEV}")


async def test_M1_a_rebound_session_continues_with_the_other_agent(cluster: Cluster) -> None:
    node = await serve(cluster, LIGHT, ELSEWHERE)
    session = await a_session(cluster, node, LIGHT)
    node = await relaunch(cluster, node, DEV, PLAIN)
    with pytest.raises(AgentNotFound):
        await cluster.submit(node, session, "two")
    await node.sessions.rebind(DEFAULT_TENANT, session, PLAIN)
    turn = await cluster.good(node, session, "two")
    assert (turn.agent_key, turn.decision["agent"]) == (PLAIN, "exact")
    assert cluster.last_prompt == [("user", "one"), ("assistant", "You said: one"), ("user", "two")]
    assert (await cluster.get(session)).agent_key == PLAIN


async def test_M1_an_agent_named_in_a_request_holds_for_that_turn_alone(cluster: Cluster) -> None:
    node = await serve(cluster, LIGHT, ELSEWHERE)
    session = await a_session(cluster, node, LIGHT)
    assert (await cluster.good(node, session, "two", agent_key=ELSEWHERE)).agent_key == ELSEWHERE
    assert (await cluster.good(node, session, "three")).agent_key == LIGHT


async def test_M1_a_busy_session_is_not_rebound(cluster: Cluster, world: World) -> None:
    gate = Gate()
    node = await cluster.node(tools=[gate_tool(gate)])
    session = await cluster.session(node)
    running = await cluster.submit(node, session, "!tool gate {}")
    await gate.until_reached()
    with pytest.raises(SessionBusy):
        await node.sessions.rebind(DEFAULT_TENANT, session, "another")
    gate.open()
    assert (await cluster.outcome(node, running)).turn is not None
    assert (await cluster.get(session)).agent_key == "builtin/scripted"
