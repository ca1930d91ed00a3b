"""I39 on real sockets: what is refused is never connected to, and what is read is capped."""

import asyncio
import gzip
import socket
import traceback
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from lastgood.core.egress import Policy
from lastgood.outside.network import (
    EgressError,
    EgressFailed,
    EgressRefused,
    EgressTimedOut,
    Fetched,
    Network,
    fetch,
)
from tests.outside.website import Website, contexts, website

pytestmark = pytest.mark.anyio

ALSO_HERE = Policy(loopback=True)
PUBLIC = "93.184.216.34"
CANARY = "canary-3f9d2c"


class Names:
    """A resolver. A host has one list of addresses, or one per time it is asked for."""

    def __init__(self, **hosts: Sequence[str] | Iterator[Sequence[str]]) -> None:
        self.hosts = {name.replace("_", "."): found for name, found in hosts.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        found = self.hosts.get(host)
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, "no such host")
        return next(found) if isinstance(found, Iterator) else found


def network(names: Names | None = None) -> Network:
    """Where a public address is played by this machine."""
    names = names or Names(agents_example_com=[PUBLIC], other_example_com=[PUBLIC])
    return Network(names, {PUBLIC: "127.0.0.1"}, contexts()[1])


@pytest.fixture
async def site() -> AsyncIterator[Website]:
    async with website() as site:
        yield site


@pytest.fixture
async def secure() -> AsyncIterator[Website]:
    """Speaks for every host of example.com."""
    async with website(tls=True) as site:
        yield site


async def ask(url: str, net: Network | None = None, *, limit: int = 1000, **more: object) -> Fetched:
    arguments = {"timeout_seconds": 10.0, "policy": ALSO_HERE, "network": net or network(), **more}
    return await fetch(url, limit_bytes=limit, **arguments)  # type: ignore[arg-type]


async def test_what_is_there_comes(site: Website) -> None:
    site.says("/a.yaml", "agents: {}", headers={"ETag": '"1"'})
    got = await ask(site.url("/a.yaml?tag=1"))
    assert (got.status, got.body, got.truncated) == (200, b"agents: {}", False)
    assert (got.headers["etag"], got.url) == ('"1"', site.url("/a.yaml?tag=1"))
    assert [one.path for one in site.asked] == ["/a.yaml?tag=1"]
    assert (await ask(site.url("/gone"))).status == 404


async def test_a_public_host_is_asked_by_https_with_its_own_name(secure: Website) -> None:
    secure.says("/a", "good")
    assert (await ask(secure.url("/a", "agents.example.com"))).body == b"good"
    assert secure.asked[0].headers["Host"] == f"agents.example.com:{secure.port}"


async def test_a_certificate_of_another_host_is_not_trusted(secure: Website) -> None:
    names = Names(agents_example_org=[PUBLIC])
    with pytest.raises(EgressFailed, match="is not trusted"):
        await ask(secure.url("/a", "agents.example.org"), network(names))
    with pytest.raises(EgressFailed, match="is not trusted"):
        await ask(secure.url("/a", "agents.example.com"), Network(network().resolve, network().wires))
    assert secure.asked == []


# --- addresses -------------------------------------------------------------------------------------------


# fmt: off
SPELLINGS = [
    "127.0.0.1", "[::1]", "localhost", "localhost.", "0.0.0.0", "10.0.0.1", "169.254.169.254", "[fe80::1]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "127.1", "2130706433", "0x7f.1",
    "0177.0.0.1", "0x7f000001", "127.0.0.1.", "①②⑦.⓪.⓪.①", "127。0。0。1",
]
# fmt: on


@pytest.mark.parametrize("host", SPELLINGS)
async def test_no_spelling_of_this_machine_gets_past_the_system_resolver(host: str, site: Website) -> None:
    for scheme in ("http", "https"):
        with pytest.raises((EgressRefused, EgressFailed)):
            await fetch(f"{scheme}://{host}:{site.port}/", limit_bytes=10, timeout_seconds=10.0)
    assert site.asked == []


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["10.1.2.3"], ["::1"], ["169.254.9.9"], [PUBLIC, "127.0.0.1"], ["fd00::1", PUBLIC], []],
)
async def test_one_address_that_is_not_public_refuses_the_host(addresses: list[str], secure: Website) -> None:
    names = Names(agents_example_com=addresses)
    with pytest.raises((EgressRefused, EgressFailed)):
        await ask(secure.url("/a", "agents.example.com"), network(names))
    assert secure.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "https://agents.example.com:{port}/a b",
        "https://agents.example.com\\@other.example.com:{port}/a",
        "https://agents.exa\tmple.com:{port}/a",
        "https://agents.example.com:{port}/a\r\nX: y",
    ],
)
async def test_what_could_be_read_in_more_than_one_way_is_not_requested(url: str, secure: Website) -> None:
    secure.leads("/onward", url.format(port=secure.port).replace("\r\n", "\t"))
    for asked in (url.format(port=secure.port), secure.url("/onward", "agents.example.com")):
        with pytest.raises(EgressRefused):
            await ask(asked)
    assert [one.path for one in secure.asked] == ["/onward"]


async def test_localhost_must_be_this_machine(site: Website) -> None:
    with pytest.raises(EgressRefused, match="a loopback name but resolves to"):
        await ask(site.url("/a", "localhost"), network(Names(localhost=[PUBLIC])))
    assert site.asked == []
    assert (await ask(site.url("/a", "localhost"), network(Names(localhost=["127.0.0.1"])))).status == 404


async def test_a_name_that_changes_its_address_gains_nothing(secure: Website) -> None:
    """DNS rebinding: what was judged is what is connected to, and it is asked for once."""
    secure.says("/a", "good")
    names = Names(agents_example_com=iter([[PUBLIC], ["127.0.0.1"]]))
    assert (await ask(secure.url("/a", "agents.example.com"), network(names))).body == b"good"
    assert names.asked == ["agents.example.com"]
    with pytest.raises(EgressRefused):
        await ask(secure.url("/a", "agents.example.com"), network(names))


async def test_only_an_address_that_was_judged_gets_a_connection() -> None:
    """A host of digits goes past every resolver; this one was judged to be played by somebody else."""
    with pytest.raises(EgressRefused, match=f"{PUBLIC} was not checked"):
        await ask(f"https://{PUBLIC}/")


async def test_a_host_in_any_script_is_resolved_as_it_is_connected_to(secure: Website) -> None:
    secure.says("/a", "good")
    names = Names(**{"xn--bcher-kva_example_com": [PUBLIC]})
    assert (await ask(secure.url("/a", "BÜCHER.example.com"), network(names))).body == b"good"
    assert secure.asked[0].headers["Host"].startswith("xn--bcher-kva.example.com:")


async def test_a_host_that_does_not_exist_fails() -> None:
    with pytest.raises(EgressFailed, match=r"unknown host nobody\.example\.com"):
        await ask("https://nobody.example.com/a")
    for label in ("a" * 70, "xn--" + "a" * 70):
        with pytest.raises(EgressError):
            await fetch(f"https://{label}.example.com/", limit_bytes=1, timeout_seconds=5.0)


# --- redirects -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed(status: int, site: Website) -> None:
    site.leads("/a", "b?x=1#part", status)
    site.says("/b", "good")
    got = await ask(site.url("/a"))
    assert (got.body, got.url) == (b"good", site.url("/b?x=1"))


@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.1:{port}/b",
        "https://127.0.0.1:{port}/b",
        "https://localhost:{port}/b",
        "https://[::1]:{port}/b",
        "https://10.0.0.1/b",
        "https://inner.example.com:{port}/b",
        "http://agents.example.com:{port}/b",
        "//127.0.0.1:{port}/b",
        "file:///etc/passwd",
        "https://user:pass@agents.example.com:{port}/b",
        "https://[broken/",
    ],
)
async def test_a_public_host_leads_only_to_public_ones(to: str, secure: Website, site: Website) -> None:
    secure.leads("/a", to.format(port=site.port))
    names = Names(agents_example_com=[PUBLIC], inner_example_com=["127.0.0.1"], localhost=["127.0.0.1"])
    with pytest.raises(EgressRefused):
        await ask(secure.url("/a", "agents.example.com"), network(names))
    assert (len(secure.asked), site.asked) == (1, [])


async def test_this_machine_may_lead_outside_but_not_back(site: Website, secure: Website) -> None:
    site.leads("/a", secure.url("/b", "agents.example.com"))
    secure.says("/b", "good")
    assert (await ask(site.url("/a"))).body == b"good"
    secure.leads("/b", site.url("/c"))
    with pytest.raises(EgressRefused):
        await ask(site.url("/a"))
    assert [one.path for one in site.asked] == ["/a", "/a"]


async def test_ten_redirects_are_followed_and_no_more(site: Website) -> None:
    for number in range(10):
        site.leads(f"/{number}", f"/{number + 1}")
    site.says("/10", "good")
    assert (await ask(site.url("/0"))).body == b"good"
    site.leads("/10", "/0")
    with pytest.raises(EgressRefused, match="more than 10 times"):
        await ask(site.url("/0"))
    assert len(site.asked) == 11 + 11


async def test_I41_another_origin_does_not_see_the_key(secure: Website) -> None:
    port = secure.port
    secure.leads("/a", f"https://agents.example.com:{port}/b")
    secure.leads("/b", f"https://other.example.com:{port}/c")
    secure.leads("/c", f"https://agents.example.com:{port}/d")
    secret = {"Authorization": CANARY, "X-Api-Key": CANARY, "Cookie": CANARY}
    await ask(secure.url("/a", "agents.example.com"), headers={**secret, "If-None-Match": '"1"'})
    seen = [CANARY in str(one.headers) for one in secure.asked]
    assert seen == [True, True, False, False], "a key that was dropped does not come back"
    assert all(one.headers["If-None-Match"] == '"1"' for one in secure.asked)


async def test_a_redirect_without_a_place_is_an_answer(site: Website) -> None:
    site.says("/a", "where?", status=302)
    assert (await ask(site.url("/a"))).status == 302


# --- limits ----------------------------------------------------------------------------------------------


async def test_I40_no_more_is_read_than_the_limit(site: Website) -> None:
    site.says("/exact", b"x" * 1000)
    site.says("/more", b"x" * 1001)
    exact, more = await ask(site.url("/exact")), await ask(site.url("/more"))
    assert (len(exact.body), exact.truncated) == (1000, False)
    assert (len(more.body), more.truncated) == (1000, True)


async def test_I40_a_body_without_an_end_is_cut(site: Website) -> None:
    written = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal written
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65536)
            written += 65536

    site.pages["/endless"] = endless
    got = await ask(site.url("/endless"), limit=200_000)
    assert (len(got.body), got.truncated) == (200_000, True)
    assert written < 50_000_000


@pytest.mark.parametrize(("name", "wbits"), [("gzip", 31), ("deflate", 15), ("x-gzip", 31)])
async def test_I40_a_bomb_does_not_unfold(site: Website, name: str, wbits: int) -> None:
    packer = zlib.compressobj(9, wbits=wbits)
    bomb = packer.compress(bytes(200_000_000)) + packer.flush()
    assert len(bomb) < 300_000
    site.says("/bomb", bomb, headers={"Content-Encoding": name})
    site.says("/small", gzip.compress(b"good", mtime=0), headers={"Content-Encoding": "GZIP"})
    tracemalloc.start()
    try:
        got = await ask(site.url("/bomb"), limit=100_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(got.body), got.truncated) == (100_000, True)
    assert peak < 10_000_000, "it was unfolded before it was counted"
    assert (await ask(site.url("/small"))).body == b"good"
    assert site.asked[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(b"x" * 99, mtime=0)[:20], "gzip"),
        (b"no gzip", "gzip"),
        (b"x", "br"),
        (b"x", "gzip, gzip"),
        (b"", "gzip"),
    ],
)
async def test_what_cannot_be_unpacked_fails(site: Website, body: bytes, encoding: str) -> None:
    site.says("/a", body, headers={"Content-Encoding": encoding})
    with pytest.raises(EgressFailed):
        await ask(site.url("/a"))


async def test_a_slow_body_ends_at_the_deadline(site: Website) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        while True:
            await answer.write(b"x")
            await asyncio.sleep(0.01)  # real time: of a slow server, until its client leaves

    site.pages["/slow"] = slow
    with pytest.raises(EgressTimedOut, match=r"timed out after 0\.2 s"):
        await ask(site.url(f"/slow?token={CANARY}"), timeout_seconds=0.2)


async def test_redirects_do_not_stretch_the_deadline(site: Website) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.06)  # real time: no response comes sooner, so that a few use the time up
        return web.Response(status=302, headers={"Location": f"/a?{len(site.asked)}"})

    site.pages["/a"] = slow
    with pytest.raises(EgressTimedOut):
        await ask(site.url("/a"), timeout_seconds=0.2)
    assert len(site.asked) < 6


# --- what is sent, and what goes wrong -------------------------------------------------------------------


async def test_no_cookie_and_no_proxy(site: Website, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    site.says("/a", status=302, headers={"Location": "/b", "Set-Cookie": "a=b"})
    site.says("/b", "good")
    assert (await ask(site.url("/a"))).body == b"good"
    assert "Cookie" not in site.asked[1].headers


@asynccontextmanager
async def raw(answer: bytes) -> AsyncIterator[str]:
    """Not a web server at all: says this to whoever asks, and hangs up."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/a?token={CANARY}"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"hello\r\n\r\n",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 5000 + b"\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_I41_invalid_responses_fail_without_quoting_the_query(answer: bytes) -> None:
    async with raw(answer) as url:
        with pytest.raises(EgressError) as failed:
            await ask(url)
    assert "\n" not in str(failed.value)
    assert CANARY not in "".join(traceback.format_exception(failed.value))


async def test_nobody_there(site: Website) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(EgressFailed, match="cannot connect"):
        await ask(f"http://127.0.0.1:{port}/")
