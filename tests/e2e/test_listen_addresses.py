"""Where `lastgood serve` listens, what it serves there, and which database it takes."""

import asyncio
import os
import re
import signal
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from lastgood.cli.listener import Listener, listen_on
from lastgood.errors import InvalidRequest
from tests.e2e.command import AGENT, SECONDS, Command
from tests.e2e.wire import DONE, Followed, Served, Wire, until, wire_to

pytestmark = pytest.mark.anyio

LONG = "!slow 0.05\n" + "word " * 400


@pytest.fixture
def short() -> Iterator[Path]:
    """The path of a unix socket may not be long, and those of pytest are."""
    with tempfile.TemporaryDirectory(prefix="lg", dir="/tmp") as name:
        yield Path(name)


@asynccontextmanager
async def wire_through(path: Path) -> AsyncIterator[Wire]:
    """As clients of a unix socket ask: for the host localhost."""
    connector = aiohttp.UnixConnector(str(path))
    timeout = aiohttp.ClientTimeout(total=3 * SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Wire(session, "http://localhost")


@contextmanager
def careless() -> Iterator[None]:
    """Everybody may do everything with what is made now."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


class Filed(Served):
    """One that listens on a unix socket, started by somebody careless."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder, options=options)
        self.path = folder / "made" / "a.sock"

    @property
    def listen(self) -> str:
        return f"unix://{self.path}"

    def launch(self) -> None:
        with careless():
            super().launch()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"it ended: {self.stderr.read_text()}"
        return self.listen in self.stderr.read_text()


class Given(Served):
    """One that gets its socket from us, as from systemd. We keep it, too."""

    def __init__(self, folder: Path, found: socket.socket, *options: str) -> None:
        super().__init__(folder, options=options)
        self.pass_fds = (found.fileno(),)
        self._address = found.getsockname()
        self.port = 0 if isinstance(self._address, str) else self._address[1]

    @property
    def listen(self) -> str:
        return f"fd://{self.pass_fds[0]}"

    def _is_ready(self) -> bool:
        if self.port:
            return super()._is_ready()
        assert self._process is not None
        assert self._process.poll() is None, f"it ended: {self.stderr.read_text()}"
        return f" on unix://{self._address}\n" in self.stderr.read_text()


# -- a unix socket -----------------------------------------------------------------------


async def test_a_unix_socket_serves_its_owner_alone(short: Path) -> None:
    """I37: no token is needed, for nobody else can reach it; Host is checked all the same."""
    with Filed(short, "--trusted-proxy", "10.9.9.9") as server:
        assert server.path.stat().st_mode & 0o777 == 0o600
        greeting = server.stderr.read_text()
        assert f"Lastgood serves {AGENT} on unix://{server.path}\n" in greeting
        assert f"http://localhost/v1 on unix://{server.path}\n" in greeting
        async with wire_through(server.path) as wire:
            assert (await wire.say("hello")).status == 200
            followed = await wire.follow("hello", None)
            assert (followed.text, followed.frames[-1]) == ("You said: hello", DONE)
            assert (await wire.get("/v1/models", host="evil.test")).status == 403
            for host in ("agent", "unix", "_"):  # as docker-agent's clients have it
                assert (await wire.get("/v1/models", host=host)).status == 200
            assert (await wire.get("/v1/models", origin="https://evil.test")).status == 403
            assert (await wire.get("/v1/models", x_forwarded_for="203.0.113.7")).status == 200
        server.tell(signal.SIGTERM)
        await until(lambda: _has_said(server, "closing connections"))
        assert not server.path.exists()  # before it stopped to listen, so that nobody takes it for dead
        assert await server.ended() == 0
        assert {line["peer"] for line in server.requests()} == {"unix"}


async def _has_said(server: Served, words: str) -> bool:
    return words in server.stderr.read_text()


async def test_a_proxy_may_be_on_a_unix_socket(short: Path) -> None:
    with Filed(short, "--trusted-proxy", "unix") as server:
        async with wire_through(server.path) as wire:
            assert (await wire.get("/v1/models", x_forwarded_for="203.0.113.7")).status == 200
        assert server.stop() == 0
        assert [line["peer"] for line in server.requests()] == ["203.0.113.7"]


async def test_the_socket_of_a_dead_server_is_replaced_and_that_of_a_live_one_is_not(short: Path) -> None:
    with Filed(short) as server:
        server.kill()
        assert server.path.is_socket()
        server.start()
        other = Command(short / "other")
        done = other("serve", AGENT, "--listen", server.listen)
        assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
        assert "another server is listening" in done.err
        assert not other.database.exists()
        async with wire_through(server.path) as wire:
            assert (await wire.say("hello")).status == 200
        assert server.stop() == 0
        assert not server.path.exists()


def test_what_took_the_sockets_place_meanwhile_is_left_there(short: Path) -> None:
    with Filed(short) as server:
        server.path.unlink()
        with closing(socket.socket(socket.AF_UNIX)) as other:
            other.bind(str(server.path))
            assert server.stop() == 0
            assert server.path.is_socket()


async def test_a_start_that_fails_leaves_no_socket(short: Path) -> None:
    done = Command(short)(
        "serve", AGENT, "--listen", f"unix://{short}/a.sock", "--token-env", "NOBODY_SET_THIS"
    )
    assert done.code == 1
    assert not (short / "a.sock").exists()


def test_a_unix_socket_is_private_before_anybody_can_connect(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    really_listen = socket.socket.listen

    def listen(self: socket.socket, backlog: int) -> None:
        modes.append((short / "a.sock").stat().st_mode & 0o777)
        really_listen(self, backlog)

    monkeypatch.setattr(socket.socket, "listen", listen)
    with careless(), listen_on(f"unix://{short}/a.sock", "--listen"):
        assert os.umask(0) == 0  # as it was
    assert modes == [0o600]


@pytest.mark.parametrize("kind", ["file", "folder", "link to a socket", "link to nothing"])
def test_files_that_are_not_sockets_are_not_removed(short: Path, kind: str) -> None:
    path = short / "a.sock"
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(short / "dead"))
    match kind:
        case "file":
            path.write_text("a diary")
        case "folder":
            path.mkdir()
        case "link to a socket":
            path.symlink_to(short / "dead")
        case _:
            path.symlink_to(short / "nothing")
    before = path.lstat()
    with pytest.raises(InvalidRequest, match="exists and is not a socket"):
        listen_on(f"unix://{path}", "--listen")
    assert path.lstat() == before
    assert (short / "dead").is_socket()


def test_a_server_that_is_too_busy_to_answer_is_alive(short: Path) -> None:
    path = short / "a.sock"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as one:
        busy.bind(str(path))
        busy.listen(0)
        one.connect(str(path))
        with pytest.raises(InvalidRequest, match="another server is listening"):
            listen_on(f"unix://{path}", "--metrics-listen")
        assert path.is_socket()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("x" * 104, "limit 103"),
        ("ä" * 52, "limit 103"),
        ("../../proc/missing/a.sock", "No such file or directory; choose another --listen"),
    ],
)
def test_an_impossible_path_is_rejected_with_a_reason(short: Path, path: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        listen_on(f"unix://{short}/{path}", "--listen")
    assert list(short.iterdir()) == []


def test_of_two_that_replace_a_dead_server_at_once_one_wins(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes when the first knows that the old one is dead, and has not removed it yet."""
    path = short / "a.sock"
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
    won: list[Listener] = []

    def start() -> None:
        with suppress(InvalidRequest):
            won.append(listen_on(f"unix://{path}", "--listen"))

    second = threading.Thread(target=start)
    really_unlink = Path.unlink

    def unlink(self: Path) -> None:
        monkeypatch.undo()
        second.start()
        second.join(0.3)  # it has to wait for us, so this is how long it may try not to
        really_unlink(self)

    monkeypatch.setattr(Path, "unlink", unlink)
    start()
    second.join()
    assert len(won) == 1
    with won[0], socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        won[0].socket.accept()[0].close()
    assert not path.exists()


# -- a socket that is given --------------------------------------------------------------


def is_inherited(pid: int, number: int) -> bool:
    flags = re.search(r"flags:\s*(\d+)", Path(f"/proc/{pid}/fdinfo/{number}").read_text())
    assert flags is not None
    return not int(flags[1], 8) & os.O_CLOEXEC


async def test_a_socket_that_listens_may_be_given_and_tools_do_not_get_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        with Given(tmp_path, found) as server:
            async with wire_to(server) as wire:
                assert (await wire.say("hello")).status == 200
                assert (await wire.get("/v1/models", host="evil.test")).status == 403
            assert not is_inherited(server.pid, found.fileno())
            assert server.stop() == 0
            assert server.requests()[0]["peer"] == "127.0.0.1"
        # The next one may be given the same.
        with Given(tmp_path / "next", found) as server:
            assert server.status("/v1/models") == 200
            assert server.stop() == 0


async def test_a_unix_socket_may_be_given_and_its_file_is_the_givers(short: Path) -> None:
    path = short / "a.sock"
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(str(path))
        found.listen()
        with Given(short, found) as server:
            async with wire_through(path) as wire:
                assert (await wire.say("hello")).status == 200
            assert server.stop() == 0
            assert server.requests()[0]["peer"] == "unix"
        assert path.is_socket()


def test_I37_a_given_socket_off_loopback_needs_a_token(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as found:
        server = Given(tmp_path, found)
        server.launch()
        assert server._process is not None
        assert server._process.wait(SECONDS) == 1
        (line,) = server.stderr.read_text().splitlines()
        assert all(word in line for word in ("0.0.0.0", "--token-file", "--insecure-no-auth"))
        with Given(tmp_path, found, "--insecure-no-auth") as server:
            assert server.status("/v1/models") == 200


def test_a_given_socket_is_judged_by_its_own_address() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as found:
        given = listen_on(f"fd://{os.dup(found.fileno())}", "--listen")
        with given:
            assert (given.host, given.place) == ("::1", f"http://[::1]:{found.getsockname()[1]}")
    with socket.socket(socket.AF_UNIX) as nameless:
        nameless.bind("\0lastgood-test-listening")
        nameless.listen()
        number = os.dup(nameless.fileno())
        with listen_on(f"fd://{number}", "--listen") as given:
            assert (given.host, given.place) == ("localhost", f"fd://{number}")


def test_invalid_sockets_are_rejected_in_one_line(tmp_path: Path) -> None:
    with (
        (tmp_path / "file").open("wb") as file,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as packets,
        socket.socket() as idle,
    ):
        packets.bind(str(tmp_path / "packets"))
        packets.listen()
        idle.bind(("127.0.0.1", 0))
        for one, words in (
            (file, "non-socket"),
            (datagrams, "not a listening stream socket"),
            (packets, "not a listening stream socket"),
            (idle, "not a listening stream socket"),
        ):
            with pytest.raises(InvalidRequest, match=words):
                listen_on(f"fd://{one.fileno()}", "--listen")
            os.fstat(one.fileno())  # it was not ours to close
    done = Command(tmp_path)("serve", AGENT, "--listen", "fd://77")
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert "cannot listen on fd://77: Bad file descriptor; choose another --listen" in done.err


@pytest.mark.parametrize(
    "address", ["fd://", "fd://-1", "fd://x", "fd://03", "unix://", "http://127.0.0.1:80", ":80"]
)
def test_invalid_addresses_are_rejected_with_valid_examples(address: str) -> None:
    with pytest.raises(InvalidRequest, match="--listen must be HOST:PORT, unix://PATH or fd://N"):
        listen_on(address, "--listen")


# -- an address for /metrics -------------------------------------------------------------


async def test_metrics_may_have_an_address_of_their_own(short: Path) -> None:
    metrics = short / "m.sock"
    with Served(short, options=("--metrics-listen", f"unix://{metrics}")) as server:
        assert f"http://localhost/metrics on unix://{metrics}\n" in server.stderr.read_text()
        assert metrics.stat().st_mode & 0o777 == 0o600
        async with wire_to(server) as wire, wire_through(metrics) as aside:
            assert (await wire.say("hello", x_conversation_id="c")).status == 200
            assert (await wire.get("/metrics")).status == 404
            assert "/metrics" not in (await wire.get("/openapi.json")).json["paths"]
            text = (await aside.get("/metrics", host="nobody.test")).body.decode()
            assert 'lastgood_turns_total{outcome="committed"} 1' in text
            for path in ("/health", "/ready"):
                assert (await wire.get(path)).status == (await aside.get(path)).status == 200
            for path in ("/v1/models", "/v1/chat/completions", "/openapi.json", "/api/sessions"):
                assert (await aside.get(path)).status == 404
            followed = Followed()
            following = asyncio.create_task(wire.follow(LONG, followed))
            await until(lambda: _begun(followed))
            server.tell(signal.SIGTERM)
            await until(lambda: _is_draining(aside))
            assert "lastgood_http_requests_running 2" in (await aside.get("/metrics")).body.decode()
            server.tell(signal.SIGTERM)
            await following
        assert await server.ended() == 0
        assert not metrics.exists()


async def _begun(one: Followed) -> bool:
    return len(one.frames) > 2


async def _is_draining(wire: Wire) -> bool:
    return (await wire.get("/ready")).status == 503


async def test_metrics_need_no_token_wherever_they_are(tmp_path: Path) -> None:
    """They hold numbers alone, and are never asked for a token."""
    with Served(tmp_path, options=("--metrics-listen", "0.0.0.0:0")) as server:
        place = server.stderr.read_text().partition("metrics                 http://0.0.0.0:")[2]
        port = place.partition("/metrics\n")[0]
        async with aiohttp.ClientSession() as session:
            aside = Wire(session, f"http://127.0.0.1:{port}")
            assert (await aside.get("/metrics")).status == 200
            assert (await aside.get("/v1/models")).status == 404


def test_two_listeners_on_one_address_are_refused(tmp_path: Path) -> None:
    address = ("--listen", "127.0.0.1:18099", "--metrics-listen", "127.0.0.1:18099")
    done = Command(tmp_path)("serve", AGENT, *address)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "are both 127.0.0.1:18099" in done.err


# -- some surfaces only ------------------------------------------------------------------


@pytest.mark.parametrize("only", ["api", "chat"])
async def test_what_is_not_served_is_not_there(tmp_path: Path, only: str) -> None:
    with Served(tmp_path, options=("--only", only)) as server:
        async with wire_to(server) as wire:
            paths = set((await wire.get("/openapi.json")).json["paths"])
            is_chat = only == "chat"
            assert ("/v1/models" in paths) is is_chat
            common = {"/health", "/ready", "/metrics", "/openapi.json"}
            assert ("/api/ready" in paths) is not is_chat
            assert not any(path.startswith("/api/" if is_chat else "/v1/") for path in paths - common)
            assert common <= paths
            assert (await wire.get("/v1/models")).status == (200 if is_chat else 404)
            assert (await wire.say("hello")).status == (200 if is_chat else 404)
            for path in ("/health", "/ready", "/metrics"):
                assert (await wire.get(path)).status == 200
        assert ("OpenAI-compatible API" in server.stderr.read_text()) is is_chat


def test_a_surface_that_does_not_exist_is_one_line_that_names_those_that_do(tmp_path: Path) -> None:
    done = Command(tmp_path)("serve", AGENT, "--only", "chat,pages")
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert "--only must be a list of api, chat" in done.err


# -- the schema --------------------------------------------------------------------------


def test_a_server_that_may_not_migrate_starts_only_on_a_schema_of_its_own(tmp_path: Path) -> None:
    command = Command(tmp_path)
    options = ("--listen", "127.0.0.1:0", "--migrate", "check")
    done = command("serve", AGENT, *options)
    assert (done.code, done.out, len(done.err.splitlines())) == (1, "", 1)
    assert "has no schema" in done.err
    assert "--migrate auto" in done.err
    assert not command.database.exists()
    assert command("serve", AGENT, "--migrate", "never").code == 2
    command.new_session()
    with Served(tmp_path, options=("--migrate", "check")) as server:
        assert server.stop() == 0
