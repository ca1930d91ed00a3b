"""I39: fetching reaches public hosts only, through every redirect, and takes no more than it may."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from aiohttp import web

from lastgood.engine.tools.fetch import PAGE_BYTES
from lastgood.engine.tools.tool import ToolFailed
from lastgood.model.agents import Effect, OnUnknown
from lastgood.outside.network import Network
from tests.outside.website import Website, contexts, website
from tests.tools.toolkit import Kit

pytestmark = pytest.mark.anyio

PUBLIC, PRIVATE = "93.184.216.34", "10.0.0.1"
CANARY = "canary-77e05b1f"


async def resolve(host: str, port: int) -> Sequence[str]:
    return [PRIVATE] if host.startswith("internal") else [PUBLIC]


#: Where a public address is played by this machine.
NETWORK = Network(resolve, {PUBLIC: "127.0.0.1"}, contexts()[1])


@pytest.fixture
async def site() -> AsyncIterator[Website]:
    async with website(tls=True) as site:
        yield site


@pytest.fixture
def kit() -> Kit:
    return Kit("fetch", None, network=NETWORK)


def at(site: Website, path: str, host: str = "www.example.com") -> str:
    return site.url(path, host)


def test_it_looks_and_may_look_again() -> None:
    tool = Kit("fetch", None).tools["fetch"]
    assert (tool.effect, tool.on_unknown) == (Effect.SAFE, OnUnknown.REPEAT)


HTML = {"Content-Type": "text/html; charset=utf-8"}


@pytest.mark.parametrize(
    ("format_", "body"),
    [
        ("text", "Hello\n\nto you"),
        ("markdown", "# Hello\n\nto [you]({you})"),
        ("html", "<h1>Hello</h1>to <a href='/you'>you</a>"),
        (None, "# Hello\n\nto [you]({you})"),
    ],
)
async def test_a_page_comes_in_the_format_requested(
    site: Website, kit: Kit, format_: str | None, body: str
) -> None:
    site.says("/", "<h1>Hello</h1>to <a href='/you'>you</a>", headers=HTML)
    body = body.replace("{you}", at(site, "/you"))
    url = at(site, "/")
    assert await kit("fetch", urls=[url], format=format_) == (
        f"Successfully fetched {url} (Status: 200, Length: {len(body)} characters):\n\n{body}"
    )


async def test_content_other_than_html_is_returned_unchanged(site: Website, kit: Kit) -> None:
    site.says("/", "a <b> & c", headers={"Content-Type": "text/plain"})
    assert (await kit("fetch", urls=[at(site, "/")])).endswith("\n\na <b> & c")


async def test_several_pages_are_escaped_where_the_file_says_so(site: Website, kit: Kit) -> None:
    site.says("/a", "<b> & c", headers={"Content-Type": "text/plain"})
    urls = [at(site, "/a"), at(site, "/a")]
    plain = await kit("fetch", urls=urls)
    escaped = await Kit("fetch", None, network=NETWORK, escape_html=True)("fetch", urls=urls)
    assert "<b> & c" in plain
    assert "\\u003cb\\u003e \\u0026 c" in escaped
    assert json.loads(escaped) == json.loads(plain)


async def test_several_pages_come_each_with_its_own_fate(site: Website, kit: Kit) -> None:
    site.says("/a", "A", headers={"Content-Type": "text/plain"})
    site.says("/b", "B", status=503)
    urls = [
        at(site, "/a"),
        at(site, "/b"),
        "https://internal.example.com/",
        "ftp://x/",
        "nonsense",
        "https://[x/",
    ]
    found = json.loads(await kit("fetch", urls=urls))
    assert [one["url"] for one in found] == urls
    assert [one.get("statusCode") for one in found] == [200, 503, None, None, None, None]
    assert found[0]["body"] == "A"
    assert "not a public address" in found[2]["error"]
    assert all(one["error"] for one in found[2:])


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1/", "https://127.0.0.1/", "https://localhost/", "https://[::1]/", "https://169.254.169.254/",
     "http://www.example.com/", "https://internal.example.com/", "https://0.0.0.0/", "https://10.0.0.1/",
     "file:///etc/passwd", "https://user:pass@www.example.com/", ""],
)  # fmt: skip
async def test_I39_what_is_not_public_is_not_requested(kit: Kit, url: str) -> None:
    assert "Error fetching" in await kit.fails("fetch", urls=[url])


@pytest.mark.parametrize(
    "target",
    [
        "https://internal.example.com/",
        "http://127.0.0.1:{port}/secret",
        "https://10.0.0.1/",
        "http://{host}/",
    ],
)
async def test_I39_a_redirect_does_not_lead_where_one_may_not_go(
    site: Website, kit: Kit, target: str
) -> None:
    site.says("/secret", "secret")
    site.leads("/", target.format(port=site.port, host=f"www.example.com:{site.port}"))
    assert "is blocked" in await kit.fails("fetch", urls=[at(site, "/")])
    assert [asked.path for asked in site.asked] == ["/robots.txt", "/"]


async def test_I40_of_a_large_page_the_beginning_is_read_and_the_rest_said(site: Website, kit: Kit) -> None:
    site.says("/", "x" * (PAGE_BYTES + 100), headers={"Content-Type": "text/plain"})
    said = await kit("fetch", urls=[at(site, "/")])
    assert said.endswith(f"x\n\n[Truncated; only the first {PAGE_BYTES} bytes were read]")
    assert len(said) < PAGE_BYTES + 500


async def test_binary_files_are_not_shown(site: Website, kit: Kit) -> None:
    site.says("/", b"\x89PNG\x00\x00", headers={"Content-Type": "image/png"})
    assert "not text (image/png)" in await kit.fails("fetch", urls=[at(site, "/")])


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/plain; charset=latin-1", "fünf".encode("latin-1")),
        ("text/plain; charset=utf-16", "fünf".encode("utf-16")),
        ("text/plain; charset=punycode", "fünf".encode()),
        ("text/plain; charset=hex", "fünf".encode()),
        ("text/plain; charset=utf-99", "fünf".encode()),
        ("text/plain", "fünf".encode()),
        ("text/html", '<meta charset="windows-1252">fünf'.encode("cp1252")),
    ],
)
async def test_text_is_read_in_its_own_encoding(site: Website, kit: Kit, kind: str, body: bytes) -> None:
    site.says("/", body, headers={"Content-Type": kind})
    assert (await kit("fetch", urls=[at(site, "/")])).endswith("fünf")


async def test_a_host_that_does_not_answer_is_not_waited_for(site: Website, kit: Kit) -> None:
    site.leads("/", at(site, "/"))
    assert "redirects more than 10 times" in await kit.fails("fetch", urls=[at(site, "/")], timeout=5)
    assert "at most 20 URLs" in await kit.fails("fetch", urls=[at(site, "/")] * 21)
    assert "`urls` must be" in await kit.fails("fetch", urls=[])
    assert "`format` must be one of" in await kit.fails("fetch", urls=["x"], format="pdf")


# --- what a site wants -----------------------------------------------------------------------------------


async def test_robots_txt_is_obeyed_and_requested_once(site: Website, kit: Kit) -> None:
    site.says("/robots.txt", "User-agent: *\nDisallow: /private\n")
    site.says("/open", "yes", headers={"Content-Type": "text/plain"})
    urls = [at(site, path) for path in ("/private/a", "/open", "/private/b")]
    found = json.loads(await kit("fetch", urls=urls))
    assert [one.get("error") for one in found] == [
        "URL blocked by robots.txt",
        None,
        "URL blocked by robots.txt",
    ]
    assert [asked.path for asked in site.asked] == ["/robots.txt", "/open"]


@pytest.mark.parametrize(("status", "welcome"), [(404, True), (403, True), (500, False)])
async def test_a_site_without_robots_rules_allows_all_unless_it_fails(
    site: Website, kit: Kit, status: int, welcome: bool
) -> None:
    site.says("/robots.txt", status=status)
    site.says("/", "hello", headers={"Content-Type": "text/plain"})
    found = json.loads(await kit("fetch", urls=[at(site, "/")] * 2))
    assert ("body" in found[0]) is welcome


# --- what the file wants ---------------------------------------------------------------------------------


LISTS = [{"allowed_domains": ["a.example.com"]}, {"blocked_domains": ["b.example.com", PUBLIC]}]


@pytest.mark.parametrize("lists", LISTS, ids=["allowed", "blocked"])
async def test_a_file_may_say_which_hosts_are_asked(site: Website, lists: dict[str, Any]) -> None:
    kit = Kit("fetch", None, network=NETWORK, **lists)
    site.says("/", "hello", headers={"Content-Type": "text/plain"})
    site.leads("/away", at(site, "/", "b.example.com"))
    assert "hello" in await kit("fetch", urls=[at(site, "/", "a.example.com")])
    site.asked.clear()
    for url in (at(site, "/", "b.example.com"), f"https://{PUBLIC}:{site.port}/"):
        assert "not an allowed host" in await kit.fails("fetch", urls=[url])
    assert site.asked == []
    assert "not an allowed host" in await kit.fails("fetch", urls=[at(site, "/away", "a.example.com")])
    assert [asked.path for asked in site.asked] == ["/robots.txt", "/away"]


async def test_I41_headers_of_the_file_go_to_the_host_and_their_keys_to_nobody_else(site: Website) -> None:
    headers = {"Authorization": "Bearer ${env.TOKEN}", "X-Who": "me"}
    kit = Kit(
        "fetch",
        None,
        network=NETWORK,
        headers=headers,
        environment={"TOKEN": CANARY},
        allowed_domains=["*.example.com", "example.com"],
    )
    open_to_all = Kit("fetch", None, network=NETWORK, headers=headers, environment={"TOKEN": CANARY})
    with pytest.raises(ToolFailed, match="allowed_domains"):
        await open_to_all("fetch", urls=[at(site, "/")])
    site.says("/", f"you sent {CANARY}", headers={"Content-Type": "text/plain"})
    site.leads("/away", at(site, "/", "other.example.com"))
    assert (await kit("fetch", urls=[at(site, "/")])).endswith("you sent [TOKEN]")
    assert site.asked[-1].headers["Authorization"] == f"Bearer {CANARY}"
    await kit("fetch", urls=[at(site, "/away")])
    assert CANARY not in str(site.asked[-1].headers)
    stranger = Kit(
        "fetch", None, network=NETWORK, headers=headers, environment={"TOKEN": CANARY}, trusted=False
    )
    await stranger("fetch", urls=[at(site, "/")])
    assert CANARY not in str(site.asked[-1].headers)


async def test_a_file_may_open_private_networks(site: Website) -> None:
    inside = Network(resolve, {PRIVATE: "127.0.0.1"}, contexts()[1])
    site.says("/", "from inside", headers={"Content-Type": "text/plain"})
    url = at(site, "/", "internal.example.com")
    assert "not a public address" in await Kit("fetch", None, network=inside).fails("fetch", urls=[url])
    assert "from inside" in await Kit("fetch", None, network=inside, allow_private_ips=True)(
        "fetch", urls=[url]
    )
    stranger = Kit("fetch", None, network=inside, allow_private_ips=True, trusted=False)
    assert "not a public address" in await stranger.fails("fetch", urls=[url])


async def test_a_file_may_say_how_long_a_page_is_waited_for(site: Website) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    site.pages["/"] = never
    failed = await Kit("fetch", None, network=NETWORK, timeout=1).fails("fetch", urls=[at(site, "/")])
    assert "1 s" in failed
