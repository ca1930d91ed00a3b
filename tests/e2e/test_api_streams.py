"""Streams of the session API: cut anywhere, resumed anywhere, the same for everybody (I22–I25).

`make prove` has the same stories with 2,000 cuts on each store; here there are some hundred.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import psutil
import pytest

from lastgood.agents.sources import parse
from lastgood.server import open_server
from lastgood.settings import read_settings
from tests.e2e.api import Api, said
from tests.e2e.command import AGENT, until
from tests.e2e.cuts import TERMINAL, CutScenario, Follower, objections, one_end_each, uncut
from tests.e2e.nodes import Nodes, two_nodes
from tests.e2e.server import LiveServer
from tests.postgres import PostgresServer
from tests.surfaces.asgi import Client, ask

pytestmark = pytest.mark.slow

GRACE = ("--shutdown-grace", "1s")
STORES = ("sqlite", "postgres")
#: Of the address under which a server without a socket is asked.
HERE = {"host": "127.0.0.1"}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """On SQLite."""
    with LiveServer(tmp_path_factory.mktemp("streams"), options=GRACE) as server:
        yield server


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[Nodes]:
    with two_nodes(tmp_path_factory.mktemp("pair"), postgres_server, "streams", *GRACE) as nodes:
        yield nodes


@pytest.fixture(params=STORES)
def servers(request: pytest.FixtureRequest) -> Sequence[LiveServer]:
    """One on SQLite, or two on PostgreSQL."""
    if request.param == "sqlite":
        return [request.getfixturevalue("embedded")]
    nodes: Nodes = request.getfixturevalue("pair")
    return nodes.servers


def talked_in(server: LiveServer) -> str:
    """A session in which something of every kind has happened."""
    api = Api(server)
    session = api.session()
    for text in (
        "!say Grüße ⛵ " * 9,
        '!tool echo {"text": "🧭"}\n!think hm\n!say done',
        "!fail during\n!say a b",
    ):
        api.turn(session, text)
    api.until_titled(session)
    return session


# -- cuts --------------------------------------------------------------------------------


def test_I22_I24_a_stream_cut_at_any_byte_and_joined_again_is_the_uncut_one(
    servers: Sequence[LiveServer],
) -> None:
    """While turns run, fail and are cancelled, and servers are ended and killed; on any node."""
    seed = 7
    received = CutScenario(servers, seed, cuts=150, restarts=2).tell()
    assert received.found == [], f"seed {seed}"
    assert (received.cuts >= 150, received.restarts) == (True, 2), received
    assert received.frames > 50, received


@pytest.mark.parametrize("skew", [-1, 1])
def test_a_cut_that_is_joined_wrongly_is_noticed(embedded: LiveServer, skew: int) -> None:
    """A comparison that cannot fail proves nothing: here one event comes twice, or not at all."""
    session = talked_in(embedded)
    whole = uncut(embedded, session)
    for planted, found in ((0, False), (skew, True)):
        joined = Follower(session, skew=planted)
        while joined.last < whole.last:
            joined.read(embedded.port, most=1500, until=whole.last)
            assert len(joined.frames) < 3 * len(whole.frames)
        assert bool(objections(joined, whole)) is found


def test_I22_every_byte_of_a_stream_is_a_good_place_to_be_cut(embedded: LiveServer) -> None:
    api = Api(embedded)
    session = api.session()
    api.good(session, "⛵")
    api.until_titled(session)
    whole = uncut(embedded, session)
    size = 600 + sum(len(one) + 10 for one in whole.frames)
    for most in range(1, size, 3):
        joined = Follower(session)
        joined.read(embedded.port, most=most, until=whole.last)
        joined.read(embedded.port, until=whole.last)
        assert joined.frames == whole.frames, f"cut after {most} bytes"


def test_I22_a_reconnecting_browser_continues_where_it_was(embedded: LiveServer) -> None:
    """A browser sends its first address again, `since` and all; the number that it has come to counts."""
    session = talked_in(embedded)
    whole = uncut(embedded, session)
    came = Api(embedded).brief(session)["last_event_seq"] - 2
    path = f"/api/sessions/{session}/events?since=1"
    with Api(embedded).stream("GET", path, last_event_id=str(came)) as stream:
        assert next(iter(stream)).id == came + 1
    assert whole.last == came + 2


# -- many watchers -----------------------------------------------------------------------


def test_I23_I24_all_watchers_see_the_same_wherever_they_watch(servers: Sequence[LiveServer]) -> None:
    api = Api(servers[0])
    session = api.session(title="mine")
    stop = threading.Event()

    def watch(number: int) -> Follower:
        follower = Follower(session)
        while not stop.is_set() or follower.last < api.brief(session)["last_event_seq"]:
            follower.read(servers[number % len(servers)].port, seconds=0.5)
        return follower

    with ThreadPoolExecutor(8) as pool:
        watching = [pool.submit(watch, number) for number in range(8)]
        try:
            for number in range(4):
                Api(servers[number % len(servers)]).turn(session, "!slow 0.005\n!say " + "Grüße ⛵ " * 40)
        finally:
            stop.set()
        seen = [one.result() for one in watching]
    whole = uncut(servers[-1], session)
    assert len(whole.frames) > 20
    assert all(one.frames == whole.frames for one in seen)
    attempts = [one["id"] for one in api.get(f"/api/sessions/{session}/attempts")]
    assert one_end_each(whole, attempts) == []
    assert sum(one["type"] in TERMINAL for one in whole.received) == len(attempts) == 4


STUCK = 12
LARGE = 100_000


def test_I23_clients_that_never_read_cost_little_and_slow_no_other(servers: Sequence[LiveServer]) -> None:
    """20 MB of events wait for each of them; the server holds a page and a frame for one at most."""
    server = servers[0]
    api = Api(server)
    session = api.session(title="mine")
    for _ in range(200):
        given = api.post(f"/api/sessions/{session}/messages", {"messages": said("x" * LARGE)})
        assert given.status == 201, given.body
    whole = uncut(server, session)
    assert sum(map(len, whole.frames)) > 200 * LARGE
    assert server._process is not None
    process = psutil.Process(server._process.pid)
    before = process.memory_info().rss
    stuck = []
    try:
        for _ in range(STUCK):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(Follower(session)._request(by_header=True))
            stuck.append(connection)
        until(lambda: server.metric("lastgood_http_requests_running") >= STUCK)
        with api.stream("GET", f"/api/sessions/{session}/events?since={whole.last}") as stream:
            began = time.monotonic()
            api.post(f"/api/sessions/{session}/messages", {"messages": said("small")})
            stream.until("stream_stopped")
            took = time.monotonic() - began
        grown = process.memory_info().rss - before
    finally:
        for connection in stuck:
            connection.close()
    assert took < 5.0
    assert grown < STUCK * 3_000_000, f"{grown / 1e6:.0f} MB for {STUCK} watchers"


# -- gone, silent, ended -----------------------------------------------------------------


def age(server: LiveServer, nodes: Nodes | None, session: str) -> None:
    """As if its attempts had ended two hours ago; the next sweep drops their events."""
    if nodes is not None:
        nodes.sql("UPDATE attempts SET ended_at = ended_at - 7200 WHERE session_id = $1", session)
        return
    database = apsw.Connection(str(server.data_dir / "lastgood.db"))
    try:
        database.set_busy_timeout(5000)
        database.execute("UPDATE attempts SET ended_at = ended_at - 7200 WHERE session_id = ?", (session,))
    finally:
        database.close()


@pytest.mark.parametrize("store", STORES)
def test_I22_watchers_of_deleted_events_get_one_resync(request: pytest.FixtureRequest, store: str) -> None:
    nodes = request.getfixturevalue("pair") if store == "postgres" else None
    servers = nodes.servers if nodes is not None else [request.getfixturevalue("embedded")]
    session = talked_in(servers[0])
    old = uncut(servers[0], session)
    before = len(old.frames) // 2
    late = Follower(session, frames=old.frames[:before], last=before)
    age(servers[0], nodes, session)
    until(lambda: kept_events(servers[0], nodes, session) == 0)
    Api(servers[0]).good(session, "after")
    end = Api(servers[0]).brief(session)["last_event_seq"]
    for number in range(1000):  # cut again and again, also right behind the resync
        late.read(servers[number % len(servers)].port, most=800, until=end)
        if late.last >= end:
            break
    received = [one["type"] for one in late.received[before:]]
    assert received.count("resync") == 1, received
    assert received[0] == "resync"
    assert late.frames[before + 1 :] == [
        one for one in uncut(servers[-1], session).frames if number_of(one) > old.last
    ]
    assert "resync" not in [one["type"] for one in uncut(servers[-1], session).received]


def number_of(frame: bytes) -> int:
    return int(frame.split(b"\n")[0].removeprefix(b"id: "))


def kept_events(server: LiveServer, nodes: Nodes | None, session: str) -> int:
    """Read past the server: a stream that brings nothing might only be slow."""
    if nodes is not None:
        ((count,),) = nodes.sql("SELECT count(*) FROM events WHERE session_id = $1", session)
    else:
        ((count,),) = server.rows("SELECT count(*) FROM events WHERE session_id = ?", session)
    return int(count)


@pytest.mark.anyio
async def test_I25_a_byte_comes_at_least_every_15_seconds(tmp_path: Path) -> None:
    """The real app, with every address behind it; only the pause between two pings is made shorter."""
    settings = read_settings({"LASTGOOD_DATA_DIR": str(tmp_path)})
    async with open_server(settings, [parse(AGENT, {})], "127.0.0.1") as server:
        assert server.app._ping_seconds <= 15.0
        server.app._ping_seconds = 0.05
        made = await ask(server.app, "POST", "/api/sessions", HERE)
        session = made.json["id"]
        quiet = Client(server.app, "GET", f"/api/sessions/{session}/events", HERE)
        await quiet.until(b": ping\n\n: ping\n\n: ping\n\n")
        run = Client(
            server.app,
            "POST",
            f"/api/sessions/{session}/agent/builtin%2Fscripted",
            {**HERE, "content-type": "application/json", "transfer-encoding": "chunked"},
            [b'{"messages": [{"role": "user", "content": "!slow 0.3\\n!say one two"}]}'],
        )
        given = await run.end()
        run.leave()
        quiet.leave()
        await quiet.end()
    blocks = given.body.split(b"\n\n")
    assert blocks.count(b": ping") >= 4
    assert [block for block in blocks if not block.startswith((b":", b"id: ")) and block] == []


def test_I25_at_shutdown_every_stream_ends_with_an_event(embedded: LiveServer, tmp_path: Path) -> None:
    """Those that only watch, and that of a turn that does not end in time; none is simply cut."""
    api = Api(embedded)
    idle, busy = api.session(), api.session()
    api.good(idle, "one")
    followers = [Follower(idle), Follower(busy)]
    with ThreadPoolExecutor(3) as pool:
        watching = [pool.submit(one.read, embedded.port) for one in followers]
        streaming = pool.submit(api.run, busy, "!slow 0.2\n!say " + "word " * 100)
        until(lambda: all(one.frames for one in followers))
        began = time.monotonic()
        assert embedded.stop() == 0
        took = time.monotonic() - began
        for one in watching:
            one.result()
        received = streaming.result().frames
    embedded.start()
    assert took < 1.0 + 5.0, "the grace time, and a moment for last words"
    for follower in followers:
        assert len(follower.notices) == 1
        assert b"shutting_down" in follower.notices[0]
    assert received[-1].type == "stream_stopped"
    assert received[-2].data["status"] == "interrupted"
    assert followers[1].received[-1]["status"] == "interrupted"


def test_I25_an_idle_server_stops_without_waiting_for_watchers(tmp_path: Path) -> None:
    """Its grace time is for turns. A watcher goes on at the next server, from its last number."""
    with LiveServer(tmp_path, options=("--shutdown-grace", "40s")) as server:
        api = Api(server)
        session = api.session()
        api.good(session, "hello")
        with api.stream("GET", f"/api/sessions/{session}/events") as stream:
            stream.until("stream_stopped")
            began = time.monotonic()
            assert server.stop() == 0
    assert time.monotonic() - began < 20
