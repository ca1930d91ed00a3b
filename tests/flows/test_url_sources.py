"""M1 with real sources: URLs on a real server and files on disk, through whole turns and restarts."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from lastgood.agents.catalog import Catalog
from lastgood.agents.sources import DirectorySource, FileSource, Source, UrlSource
from lastgood.agents.url_source import UrlPolicy
from lastgood.errors import AgentInvalid, AgentNotFound, AgentUnavailable
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.wiring import Lastgood
from tests.contract.conftest import dump
from tests.flows.cluster import Cluster
from tests.outside.website import Website, website

pytestmark = pytest.mark.anyio


def agent_file(description: str) -> str:
    return f"agents:\n  root:\n    model: builtin/scripted\n    description: {description}\n"


@dataclass
class Server:
    """A Lastgood that is started again and again on one database and one data folder."""

    cluster: Cluster
    data_dir: Path
    node: Lastgood | None = None

    async def start(self, *sources: Source, data_dir: Path | None = None) -> Lastgood:
        if self.node is not None:
            await self.cluster.stop(self.node)
            await self.cluster.reopen()
        folder = (data_dir or self.data_dir) / "url_cache"
        catalog = Catalog(
            sources, UrlPolicy(folder, every_seconds=0.0, again_seconds=10.0, pause_seconds=0.0)
        )
        self.node = await self.cluster.node("server", served=catalog, alone=True)
        return self.node


@pytest.fixture
def server(cluster: Cluster, tmp_path: Path) -> Server:
    return Server(cluster, tmp_path / "data")


@pytest.fixture
async def site() -> AsyncIterator[Website]:
    """Serves one file under every tag; its description is the tag."""

    async def team(request: web.Request) -> web.StreamResponse:
        return web.Response(text=agent_file(request.query.get("tag", "plain")))

    async with website() as site:
        site.pages["/team.yaml"] = site.pages["/other.yaml"] = team
        yield site


def team(site: Website, query: str = "", path: str = "/team.yaml") -> UrlSource:
    return UrlSource(site.url(path + query))


async def begun(cluster: Cluster, node: Lastgood, source: UrlSource | FileSource) -> SessionId:
    session = await cluster.session(node, source.key)
    await cluster.good(node, session, "one")
    return session


# --- which agent a session means -------------------------------------------------------------------------


async def test_M1_2_a_server_relaunched_with_another_query_continues(
    cluster: Cluster, server: Server, site: Website
) -> None:
    light, dev = team(site, "?tag=v9-light"), team(site, "?tag=v9-dev&x=1")
    other = team(site, "?tag=v9-light", "/other.yaml")
    session = await begun(cluster, await server.start(light, other), light)
    node = await server.start(dev, other)
    outcome = await cluster.say(node, session, "two")
    assert outcome.turn is not None
    assert cluster.last_prompt == [("user", "one"), ("assistant", "You said: one"), ("user", "two")]
    first, second = await cluster.turns(session)
    attempt = await cluster.attempt(outcome.attempt)
    for kept in (second, attempt):
        assert (kept.decision["agent"], kept.agent_key) == ("stable", dev.key)
        assert (kept.decision["recorded"], kept.decision["key"]) == (light.key, dev.key)
        assert "differs only in its query" in kept.decision["reason"]
    assert first.agent_digest != second.agent_digest, "another tag is another definition"
    assert second.agent_digest == (await node.deps.agents.load(dev.key)).digest


async def test_M1_1_an_exact_key_wins_among_variants(cluster: Cluster, server: Server, site: Website) -> None:
    light, dev, plain = (team(site, query) for query in ("?tag=light", "?tag=dev", ""))
    node = await server.start(light, dev, plain)
    for source in (light, dev, plain):
        turn = await cluster.good(node, await cluster.session(node, source.key), "hello")
        assert (turn.agent_key, turn.decision["agent"]) == (source.key, "exact")
        assert turn.agent_digest == (await node.deps.agents.load(source.key)).digest


async def test_M1_3_two_variants_are_refused_by_name_whatever_was_loaded_before(
    cluster: Cluster, server: Server, site: Website, tmp_path: Path
) -> None:
    """Also M1.4: a warm catalog, a restarted one, and one without any copy on disk say the same."""
    light, dev, plain = (team(site, query) for query in ("?tag=light", "?tag=dev", ""))
    session = await begun(cluster, await server.start(light), light)
    node = await server.start(dev, plain)
    for source in (dev, plain):
        await cluster.good(node, await cluster.session(node, source.key), "warm it")
    answers = []
    for start in ("warm", "restarted", "elsewhere"):
        if start != "warm":
            fresh = tmp_path / "fresh" if start == "elsewhere" else None
            node = await server.start(plain, dev, data_dir=fresh)
        await cluster.quiet(node)  # titles are made beside the turns
        before, asked = await dump(cluster.backend), len(site.asked)
        with pytest.raises(AgentNotFound) as refused:
            await cluster.submit(node, session, "two")
        assert await dump(cluster.backend) == before, "a refusal was stored"
        assert len(site.asked) == asked, "nobody needs to be asked to refuse"
        assert all(source.key in refused.value.message for source in (dev, plain))
        answers.append((refused.value.message, refused.value.detail))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][1]["agent"] == "ambiguous"
    assert answers[0][1]["candidates"] == sorted([dev.key, plain.key])


async def test_M1_4_a_copy_on_disk_does_not_make_an_agent_served(
    cluster: Cluster, server: Server, site: Website
) -> None:
    light, other = team(site, "?tag=light"), team(site, "", "/other.yaml")
    session = await begun(cluster, await server.start(light), light)
    node = await server.start(other)
    with pytest.raises(AgentNotFound) as refused:
        await cluster.submit(node, session, "two")
    assert refused.value.detail["agent"] == "missing"


async def test_M1_5_listing_and_reading_ask_no_server(
    cluster: Cluster, server: Server, site: Website
) -> None:
    light = team(site, "?tag=light")
    session = await begun(cluster, await server.start(light), light)
    node = await server.start(light)
    site.pages.clear()
    asked = len(site.asked)
    page = await node.sessions.list(DEFAULT_TENANT)
    assert [one.id for one in page.sessions] == [session]
    assert len((await node.sessions.read(DEFAULT_TENANT, session)).turns) == 1
    assert len(await node.sessions.attempts(DEFAULT_TENANT, session)) == 1
    assert len(site.asked) == asked


# --- which version answers -------------------------------------------------------------------------------


async def test_a_changed_url_reaches_the_next_turn_without_a_restart(
    cluster: Cluster, server: Server, site: Website
) -> None:
    source = team(site)
    site.publishes("/team.yaml", agent_file("one"), '"1"')
    node = await server.start(source)
    session = await begun(cluster, node, source)
    await cluster.good(node, session, "two")
    site.publishes("/team.yaml", agent_file("two"), '"2"')
    await cluster.good(node, session, "three")
    one, two, three = [turn.agent_digest for turn in await cluster.turns(session)]
    assert one == two != three
    assert [one.headers.get("If-None-Match") for one in site.asked] == [None, '"1"', '"1"']


@pytest.mark.parametrize("in_a_folder", [False, True])
async def test_a_changed_file_reaches_the_next_turn_without_a_restart(
    cluster: Cluster, server: Server, tmp_path: Path, in_a_folder: bool
) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    file = folder / "team.yaml"
    file.write_text(agent_file("one"))
    source = FileSource(file)
    node = await server.start(DirectorySource(folder) if in_a_folder else source)
    session = await begun(cluster, node, source)
    file.write_text(agent_file("two"))
    await cluster.good(node, session, "two")
    file.write_text("agents: [broken")
    turn = await cluster.good(node, session, "three")
    digests = [turn.agent_digest for turn in await cluster.turns(session)]
    assert digests[0] != digests[1] == digests[2]
    assert "team.yaml" in turn.decision["stale"], "nobody can see that it is not the newest"
    file.write_text(agent_file("three"))
    turn = await cluster.good(node, session, "four")
    assert turn.agent_digest not in digests
    assert "stale" not in turn.decision


async def test_the_last_good_copy_answers_while_the_server_is_down_and_after_a_restart(
    cluster: Cluster, server: Server
) -> None:
    async with website() as site:
        site.publishes("/team.yaml", agent_file("good"), '"1"')
        source = team(site)
        node = await server.start(source)
        session = await begun(cluster, node, source)
    for text in ("two", "three"):
        turn = await cluster.good(node, session, text)
        assert "cannot connect" in turn.decision["stale"]
        attempt = await cluster.attempt(turn.attempt)
        assert attempt.decision["stale"] == turn.decision["stale"]
        node = await server.start(source)
    async with website(port=site.port) as again:
        again.publishes("/team.yaml", agent_file("good"), '"1"')
        turn = await cluster.good(node, session, "four")
        assert "stale" not in turn.decision
    assert len({turn.agent_digest for turn in await cluster.turns(session)}) == 1


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [(503, "", AgentUnavailable), (200, "<html>", AgentInvalid), (404, agent_file("x"), AgentUnavailable)],
)
async def test_a_source_that_was_never_good_begins_no_turn(
    cluster: Cluster, server: Server, site: Website, status: int, body: str, error: type[Exception]
) -> None:
    source = team(site)
    node = await server.start(source)
    session = await cluster.session(node, source.key)
    site.says("/team.yaml", body, status=status)
    before = await dump(cluster.backend)
    with pytest.raises(error, match=f"127.0.0.1:{site.port}/team.yaml"):
        await cluster.submit(node, session, "one")
    assert await dump(cluster.backend) == before
    site.publishes("/team.yaml", agent_file("now"), '"1"')
    await cluster.good(node, session, "one")
