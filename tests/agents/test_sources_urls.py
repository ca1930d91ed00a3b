"""URLs: asked for when used, again when old; the last good copy serves while nothing better comes."""

import asyncio
import gc
import gzip
import logging
import os
import stat
import traceback
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from lastgood.agents.catalog import Catalog
from lastgood.agents.file_source import LIMIT_BYTES
from lastgood.agents.sources import UrlSource
from lastgood.agents.url_source import CachedCopy, UrlPolicy, read_copy, write_copy
from lastgood.errors import AgentInvalid, AgentUnavailable
from lastgood.outside.network import Network
from lastgood.outside.secrets import Secrets
from tests.outside.website import Website, contexts, website

pytestmark = pytest.mark.anyio

CANARY = "canary-b81e07"
PUBLIC = "93.184.216.34"


def agent_file(description: str = "one") -> str:
    return f"agents:\n  root:\n    model: builtin/scripted\n    description: {description}\n"


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def policy(tmp_path: Path, clock: Clock) -> UrlPolicy:
    return UrlPolicy(tmp_path / "url_cache", every_seconds=60.0, clock=clock)


@pytest.fixture
async def site() -> AsyncIterator[Website]:
    async with website() as site:
        site.publishes("/team.yaml", agent_file(), '"1"')
        yield site


class Served:
    """One URL, and a catalog that can be started again."""

    def __init__(self, url: str, policy: UrlPolicy) -> None:
        self.source, self.policy = UrlSource(url), policy
        self.catalog = Catalog([self.source], policy)

    async def load(self) -> tuple[str, str]:
        agent = await self.catalog.load(self.source.key)
        assert "\n" not in agent.stale
        return agent.description, agent.stale

    def restart(self) -> None:
        self.catalog = Catalog([self.source], self.policy)


@pytest.fixture
def served(site: Website, policy: UrlPolicy) -> Served:
    return Served(site.url("/team.yaml?tag=v1"), policy)


# --- asking ----------------------------------------------------------------------------------------------


async def test_no_model_is_called_before_the_agent_is_used(served: Served, site: Website) -> None:
    assert served.catalog.served() == (served.source.key,)
    assert site.asked == []
    assert await served.load() == ("one", "")
    assert [one.path for one in site.asked] == ["/team.yaml?tag=v1"]
    agent = await served.catalog.load(served.source.key)
    assert agent.key == served.source.key
    assert agent.digest.startswith("sha256:")


async def test_a_copy_serves_until_it_is_old_and_then_a_304_makes_it_new(
    served: Served, site: Website, clock: Clock
) -> None:
    for seconds, asked in ((0, 1), (59, 1), (1, 2), (0, 2), (59, 2), (1, 3)):
        clock.seconds += seconds
        assert await served.load() == ("one", "")
        assert len(site.asked) == asked
    assert [one.headers.get("If-None-Match") for one in site.asked] == [None, '"1"', '"1"']


async def test_the_last_change_of_a_url_is_that_of_its_body(
    served: Served, site: Website, clock: Clock
) -> None:
    await served.load()
    first = served.catalog.origin(served.source.key).changed_at
    clock.seconds += 60
    await served.load()  # a 304
    assert served.catalog.origin(served.source.key).changed_at == first is not None
    served.restart()
    await served.load()
    assert served.catalog.origin(served.source.key).changed_at == pytest.approx(first)


async def test_an_interval_of_zero_asks_at_every_turn(served: Served, site: Website) -> None:
    served.policy = replace(served.policy, every_seconds=0.0)
    served.restart()
    for number in range(1, 4):
        site.publishes("/team.yaml", agent_file(f"v{number}"), f'"{number}"')
        assert await served.load() == (f"v{number}", "")
    assert len(site.asked) == 3


async def test_a_change_is_there_once_the_copy_is_old(served: Served, site: Website, clock: Clock) -> None:
    first = await served.catalog.load(served.source.key)
    site.publishes("/team.yaml", agent_file("two"), '"2"')
    assert await served.load() == ("one", "")
    clock.seconds += 60
    second = await served.catalog.load(served.source.key)
    assert (second.description, second.stale) == ("two", "")
    assert second.digest != first.digest


async def test_without_an_etag_the_date_is_used(served: Served, site: Website, clock: Clock) -> None:
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    site.says("/team.yaml", agent_file(), headers={"Last-Modified": date})
    await served.load()
    clock.seconds += 60
    site.says("/team.yaml", status=304)
    assert await served.load() == ("one", "")
    assert site.asked[1].headers["If-Modified-Since"] == date
    assert "If-None-Match" not in site.asked[1].headers


async def test_an_unrequested_304_is_rejected(served: Served, site: Website, clock: Clock) -> None:
    site.says("/team.yaml", status=304)
    with pytest.raises(AgentUnavailable, match="returned status 304"):
        await served.load()
    site.says("/team.yaml", agent_file())
    assert await served.load() == ("one", "")
    site.says("/team.yaml", status=304)
    clock.seconds += 60
    assert "returned status 304" in (await served.load())[1]


async def test_turns_at_the_same_time_ask_once(served: Served, site: Website) -> None:
    loaded = await asyncio.gather(*(served.load() for _ in range(20)))
    assert set(loaded) == {("one", "")}
    assert len(site.asked) == 1


async def test_one_slow_source_holds_up_only_itself(served: Served, site: Website, policy: UrlPolicy) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        reached.set()
        await go_on.wait()
        return web.Response(text=agent_file("slow"))

    site.pages["/slow.yaml"] = slow
    other = UrlSource(site.url("/slow.yaml"))
    catalog = Catalog([other, served.source], policy)
    first, second = (asyncio.create_task(catalog.load(other.key)) for _ in range(2))
    await reached.wait()
    assert (await catalog.load(served.source.key)).description == "one"
    first.cancel()  # one who gives up does not take it from the other
    await asyncio.gather(first, return_exceptions=True)
    go_on.set()
    assert (await second).description == "slow"
    assert [one.path for one in site.asked] == ["/slow.yaml", "/team.yaml?tag=v1"]


async def test_closing_ends_what_is_being_asked(served: Served, site: Website) -> None:
    reached = asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        reached.set()
        await asyncio.sleep(3600)
        return web.Response()

    site.pages["/team.yaml"] = never
    load = asyncio.create_task(served.load())
    await reached.wait()
    await served.catalog.close()
    with pytest.raises(asyncio.CancelledError):
        await load


# --- the last good copy ----------------------------------------------------------------------------------


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


async def cut(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "1000"})
    await answer.prepare(request)
    await answer.write(agent_file("cut").encode())
    assert request.transport is not None
    request.transport.abort()
    return answer


def spoil(site: Website, how: str) -> None:
    match how:
        case "gone" | "down" | "denied" | "empty":
            status = {"gone": 404, "down": 503, "denied": 401, "empty": 204}[how]
            site.says("/team.yaml", agent_file("error page"), status=status)
        case "broken":
            site.says("/team.yaml", "agents: [no: yaml", headers={"ETag": '"2"'})
        case "page":
            site.says("/team.yaml", "<html><body>Sign in</body></html>")
        case "binary":
            site.says("/team.yaml", os.urandom(1000))
        case "huge":
            site.says("/team.yaml", agent_file("huge") + "#" * LIMIT_BYTES)
        case "bomb":
            body = gzip.compress(agent_file("bomb").encode() + b"#" * 50_000_000)
            site.says("/team.yaml", body, headers={"Content-Encoding": "gzip"})
        case "inside":
            site.leads("/team.yaml", "https://10.0.0.1/team.yaml")
        case "around":
            site.leads("/team.yaml", "/team.yaml")
        case "slow":
            site.pages["/team.yaml"] = hang
        case _:
            site.pages["/team.yaml"] = cut


SPOILT = (
    "gone", "down", "denied", "empty", "broken", "page", "binary", "huge", "bomb", "inside", "around", "slow",
    "cut",
)  # fmt: skip


def patience(how: str) -> float:
    """Short only where nothing will ever come: a busy machine takes its time."""
    return 0.3 if how == "slow" else 10.0


@pytest.mark.parametrize("how", SPOILT)
async def test_the_last_good_copy_serves_whatever_comes_instead(
    how: str, served: Served, site: Website, clock: Clock
) -> None:
    """Also after a restart, and only until something good comes again."""
    served.policy = replace(served.policy, first_seconds=60.0, again_seconds=patience(how))
    served.restart()
    good = await served.catalog.load(served.source.key)
    spoil(site, how)
    clock.seconds += 60
    for restarts in (False, False, True):
        if restarts:
            served.restart()
        async with asyncio.timeout(15.0):  # less than the patience of one who has no copy
            agent = await served.catalog.load(served.source.key)
        assert (agent.digest, agent.description) == (good.digest, "one")
        assert agent.stale.startswith(f"http://127.0.0.1:{site.port}/team.yaml")
        assert " UTC" in agent.stale
        assert "tag=v1" not in agent.stale
    served.policy = replace(served.policy, again_seconds=10.0)
    served.restart()
    site.publishes("/team.yaml", agent_file("two"), '"2"')
    assert await served.load() == ("two", "")


@pytest.mark.parametrize("how", SPOILT)
async def test_what_was_never_good_fails_with_its_reason_and_is_asked_again(
    how: str, served: Served, site: Website
) -> None:
    served.policy = replace(served.policy, first_seconds=patience(how))
    served.restart()
    spoil(site, how)
    for asked in (1, 2):
        with pytest.raises((AgentUnavailable, AgentInvalid)) as failed:
            await served.load()
        assert f"127.0.0.1:{site.port}/team.yaml" in failed.value.message
        assert len(site.asked) >= asked
    site.publishes("/team.yaml", agent_file(), '"1"')
    if how == "slow":
        served.policy = replace(served.policy, first_seconds=10.0)
        served.restart()
    assert await served.load() == ("one", "")


async def test_a_server_that_is_down_is_survived_also_by_a_restart(served: Served, policy: UrlPolicy) -> None:
    async with website() as site:
        site.publishes("/a.yaml", agent_file("kept"), '"1"')
        served = Served(site.url("/a.yaml"), replace(policy, every_seconds=0.0, pause_seconds=0.0))
        assert await served.load() == ("kept", "")
    for _ in range(2):
        description, stale = await served.load()
        assert description == "kept"
        assert "cannot connect" in stale
        served.restart()
    async with website(port=site.port) as again:
        again.publishes("/a.yaml", agent_file("kept"), '"1"')
        assert await served.load() == ("kept", "")
        assert again.asked[0].headers["If-None-Match"] == '"1"', "the copy on disk was not used"


async def test_after_a_failure_the_next_turns_do_not_wait(
    served: Served, site: Website, clock: Clock
) -> None:
    served.policy = replace(served.policy, every_seconds=0.0, pause_seconds=5.0)
    served.restart()
    await served.load()
    site.says("/team.yaml", status=503)
    for seconds, asked in ((0.0, 2), (4.9, 2), (0.2, 3)):
        clock.seconds += seconds
        assert "returned status 503" in (await served.load())[1]
        assert len(site.asked) == asked


async def test_a_304_after_a_failure_makes_the_copy_the_newest_again(
    served: Served, site: Website, clock: Clock
) -> None:
    await served.load()
    site.says("/team.yaml", status=503)
    clock.seconds += 60
    assert "returned status 503" in (await served.load())[1]
    site.publishes("/team.yaml", agent_file(), '"1"')
    clock.seconds += 60
    assert await served.load() == ("one", "")
    assert site.asked[-1].headers["If-None-Match"] == '"1"'


async def test_a_broken_definition_stays_broken_however_often_its_server_says_so(
    served: Served, site: Website, clock: Clock
) -> None:
    """Its ETag is not taken for that of the good copy, or a 304 would make the old one the newest."""
    await served.load()
    site.publishes("/team.yaml", "agents: [no: yaml", '"2"')
    for _ in range(3):
        clock.seconds += 60
        description, stale = await served.load()
        assert (description, bool(stale)) == ("one", True)
    assert [one.headers.get("If-None-Match") for one in site.asked] == [None, '"1"', '"1"', '"1"']


async def test_an_unawaited_failure_affects_no_other_turn(served: Served, site: Website) -> None:
    reached, go_on, complaints = asyncio.Event(), asyncio.Event(), []

    async def fail_later(request: web.Request) -> web.StreamResponse:
        reached.set()
        await go_on.wait()
        return web.Response(status=503)

    site.pages["/team.yaml"] = fail_later
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    try:
        load = asyncio.create_task(served.load())
        await reached.wait()
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        (reading,) = served.catalog._reading.values()
        go_on.set()
        await asyncio.wait([reading])
        del reading
        gc.collect()
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
    assert complaints == []
    site.publishes("/team.yaml", agent_file(), '"1"')
    assert await served.load() == ("one", "")


async def test_a_copy_of_another_url_is_not_taken(site: Website, policy: UrlPolicy) -> None:
    light = Served(site.url("/team.yaml?tag=light"), policy)
    await light.load()
    site.says("/team.yaml", status=500)
    with pytest.raises(AgentUnavailable):
        await Served(site.url("/team.yaml?tag=dev"), policy).load()


async def test_a_broken_definition_is_never_kept(served: Served, site: Website, policy: UrlPolicy) -> None:
    spoil(site, "broken")
    with pytest.raises(AgentInvalid):
        await served.load()
    assert policy.folder is not None
    assert read_copy(policy.folder, served.source.url) is None


# --- copies on disk --------------------------------------------------------------------------------------


def test_a_copy_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "url_cache"
    copy = CachedCopy(b"line\nline\xff" + b"x" * LIMIT_BYTES, '"1"', "a date", 12.5)
    write_copy(folder, "https://a/?q", copy)
    assert read_copy(folder, "https://a/?q") == copy
    assert read_copy(folder, "https://a/?r") is None
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "a definition may hold what others should not see"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    write_copy(folder, "https://a/?q", replace(copy, body=b"new"))
    assert [one.name for one in folder.iterdir()] == [file.name]


def kept(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


@pytest.mark.parametrize(
    "damage",
    [
        lambda body: b"",
        lambda body: body[:-1],
        lambda body: body[: len(body) // 2],
        lambda body: body + b"x",
        lambda body: body.replace(b"one", b"two"),
        lambda body: b"[]\n" + body,
        lambda body: b"null\n",
        lambda body: b"\xff" + body,
        lambda body: body.replace(b'"etag"', b'"xtag"'),
        lambda body: b"x" * 3_000_000,
    ],
)
async def test_a_damaged_copy_is_no_copy(served: Served, site: Website, damage: object) -> None:
    await served.load()
    assert served.policy.folder is not None
    file = kept(served.policy.folder)
    body = file.read_bytes()
    file.write_bytes(damage(body))  # type: ignore[operator]
    served.restart()
    assert await served.load() == ("one", "")
    assert "If-None-Match" not in site.asked[1].headers
    assert file.read_bytes().partition(b"\n")[2] == body.partition(b"\n")[2]


async def test_a_copy_that_is_no_agent_file_any_more_is_no_copy(served: Served, site: Website) -> None:
    """As when a newer version of the server is stricter than the one that kept it."""
    assert served.policy.folder is not None
    write_copy(served.policy.folder, served.source.url, CachedCopy(b"agents: []", '"1"', "", 1.0))
    assert await served.load() == ("one", "")
    assert "If-None-Match" not in site.asked[0].headers


async def test_a_disk_that_refuses_costs_no_turn(served: Served, site: Website, tmp_path: Path) -> None:
    (tmp_path / "url_cache").write_text("in the way")
    assert await served.load() == ("one", "")


async def test_what_cannot_be_sent_back_is_not_kept(served: Served, site: Website, clock: Clock) -> None:
    site.says("/team.yaml", agent_file(), headers={"ETag": '"ü"', "Last-Modified": "x"})
    await served.load()
    clock.seconds += 60
    assert await served.load() == ("one", "")
    assert "If-None-Match" not in site.asked[1].headers
    assert site.asked[1].headers["If-Modified-Since"] == "x"


# --- the guard and the key -------------------------------------------------------------------------------


def public(hosts: dict[str, Sequence[str]]) -> Network:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return hosts[host]

    return Network(resolve, {PUBLIC: "127.0.0.1"}, contexts()[1])


async def test_I39_a_public_url_may_not_lead_to_this_machine(site: Website, policy: UrlPolicy) -> None:
    """The operator may name this machine; a stranger may not."""
    async with website(tls=True) as secure:
        secure.publishes("/team.yaml", agent_file("public"), '"1"')
        hosts: dict[str, Sequence[str]] = {"agents.example.com": [PUBLIC], "inner.example.com": ["127.0.0.1"]}
        policy = replace(policy, network=public(hosts), every_seconds=0.0, pause_seconds=0.0)
        served = Served(secure.url("/team.yaml", "agents.example.com"), policy)
        good = await served.load()
        assert good == ("public", "")
        ports = (site.url("/team.yaml"), f"https://inner.example.com:{secure.port}/team.yaml")
        for to in (*ports, f"https://127.0.0.1:{secure.port}/team.yaml", "https://[::ffff:127.0.0.1]/"):
            secure.leads("/team.yaml", to)
            asked = len(secure.asked)
            description, stale = await served.load()
            assert description == "public"
            assert "is blocked" in stale
            assert len(secure.asked) == asked + 1
        assert site.asked == []


async def test_I39_a_host_whose_address_turns_inward_is_not_asked(policy: UrlPolicy) -> None:
    async with website(tls=True) as secure:
        secure.publishes("/team.yaml", agent_file("public"), '"1"')
        hosts: dict[str, Sequence[str]] = {"agents.example.com": [PUBLIC]}
        policy = replace(policy, network=public(hosts), every_seconds=0.0, pause_seconds=0.0)
        served = Served(secure.url("/team.yaml", "agents.example.com"), policy)
        await served.load()
        for addresses in (["127.0.0.1"], ["169.254.169.254"], [PUBLIC, "10.0.0.1"]):
            hosts["agents.example.com"] = addresses
            assert "is not a public address" in (await served.load())[1]
        assert len(secure.asked) == 1


GITHUB = ("raw.githubusercontent.com", "github.com", "gist.githubusercontent.com")
NOT_GITHUB = ("agents.example.com", "evil-github.com", "raw.githubusercontent.com.example.com")


@pytest.mark.parametrize(("host", "sees"), [*((h, True) for h in GITHUB), *((h, False) for h in NOT_GITHUB)])
async def test_I41_the_github_token_goes_to_github_alone(host: str, sees: bool, policy: UrlPolicy) -> None:
    async with website(tls=True) as secure:
        secure.leads("/a.yaml", f"https://agents.example.com:{secure.port}/b.yaml")
        secure.publishes("/b.yaml", agent_file(), '"1"')
        network = public({host: [PUBLIC], "agents.example.com": [PUBLIC]})
        secrets = Secrets({"GITHUB_TOKEN": CANARY})
        served = Served(secure.url("/a.yaml", host), replace(policy, network=network, secrets=secrets))
        assert await served.load() == ("one", "")
        seen = [one.headers.get("Authorization") for one in secure.asked]
        assert seen == [f"Bearer {CANARY}" if sees else None, None]


async def test_without_a_token_nothing_is_sent(policy: UrlPolicy) -> None:
    async with website(tls=True) as secure:
        secure.publishes("/a.yaml", agent_file(), '"1"')
        network = public({"github.com": [PUBLIC]})
        await Served(secure.url("/a.yaml", "github.com"), replace(policy, network=network)).load()
        assert "Authorization" not in secure.asked[0].headers


async def test_I41_no_key_is_in_any_error_log_or_reason(
    policy: UrlPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    """The server even says it back."""
    caplog.set_level(logging.DEBUG)
    async with website(tls=True) as secure:
        policy = replace(
            policy,
            network=public({"github.com": [PUBLIC]}),
            secrets=Secrets({"GITHUB_TOKEN": CANARY}),
        )
        url = secure.url(f"/team.yaml?token={CANARY}", "github.com")
        spoils = [*SPOILT, "echo"]
        for how in spoils:
            spoil_with_key(secure, how)
            with pytest.raises((AgentUnavailable, AgentInvalid)) as failed:
                await Served(url, replace(policy, first_seconds=patience(how))).load()
            assert CANARY not in "".join(traceback.format_exception(failed.value))
            assert CANARY not in repr(failed.value.detail)
        secure.publishes("/team.yaml", agent_file(), '"1"')
        await Served(url, policy).load()
        for how in spoils:
            spoil_with_key(secure, how)
            stale = (await Served(url, replace(policy, again_seconds=patience(how))).load())[1]
            assert stale
            assert CANARY not in stale
    assert CANARY not in caplog.text


def spoil_with_key(site: Website, how: str) -> None:
    if how == "echo":
        site.says("/team.yaml", f"agents: {{root: {{{CANARY}: {CANARY}}}}}")
    else:
        spoil(site, how)


async def test_I39_a_url_is_trusted_only_if_its_alias_says_so(site: Website, policy: UrlPolicy) -> None:
    """What a stranger writes may not put files of this machine into a prompt."""
    site.says("/team.yaml", agent_file() + "    add_prompt_files: [/etc/passwd]\n")
    for trusted in (False, True):
        source = UrlSource(site.url(f"/team.yaml?{trusted}"), trusted)
        agent = await Catalog([source], policy).load(source.key)
        assert agent.add_prompt_files == (("/etc/passwd",) if trusted else ())
