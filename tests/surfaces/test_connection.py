"""What a connection may do (I40): bytes and seconds of everything that is not a body, on real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import pytest
import uvicorn

from lastgood.surfaces.http.app import App
from lastgood.surfaces.http.asgi import Request, Response, Stream, json_reply
from lastgood.surfaces.http.connection import HttpConnection
from tests.surfaces.asgi import SECONDS, app_of, route

pytestmark = pytest.mark.anyio

LIMIT = 50_000
HELLO = b"GET /hello HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = b"GET /hello HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


class Impatient(HttpConnection):
    head_seconds = 0.3
    linger_seconds = 0.3
    stall_seconds = 0.3


class SlowBodies(HttpConnection):
    """Has a limit for heads only."""

    head_seconds = 0.3
    linger_seconds = stall_seconds = 60.0


class Patient(HttpConnection):
    """One that would wait for longer than a test does."""

    head_seconds = linger_seconds = stall_seconds = 60.0


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class Listener:
    port: int
    app: App
    streams: list[str]  # how they ended

    async def connect(self) -> "Wire":
        return Wire(*await asyncio.open_connection("127.0.0.1", self.port))

    async def send(self, *pieces: bytes) -> bytes:
        """Everything that comes back until the connection ends."""
        wire = await self.connect()
        await wire.send(*pieces)
        return await wire.rest()

    async def past_the_limit_of_a_head(self) -> None:
        """Until a connection that began later than all others was ended by that limit."""
        assert refusal(await self.send(b"GET /hel")) == (408, "invalid_request")


@dataclass
class Wire:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, *pieces: bytes) -> None:
        with suppress(ConnectionError):  # it may not listen any more
            for piece in pieces:
                self.writer.write(piece)
                await self.writer.drain()

    async def send_until_cut(self, piece: bytes, pause: float = 0.0) -> int:
        """How many bytes it took."""
        taken = 0
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionError):
                while True:
                    self.writer.write(piece)
                    await self.writer.drain()
                    await asyncio.sleep(pause)  # real time: of a slow client, until it is cut
                    taken += len(piece)
        return taken

    async def rest(self) -> bytes:
        got = b""
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    got += piece
        await self.close()
        return got

    async def until(self, text: bytes) -> bytes:
        async with asyncio.timeout(SECONDS):
            return await self.reader.readuntil(text)

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def served(connection: type[HttpConnection] = Patient) -> AsyncIterator[Listener]:
    ended: list[str] = []

    async def hello(request: Request) -> Response:
        return json_reply({"hello": dict(request.headers)})

    async def body(request: Request) -> Response:
        return json_reply({"bytes": len(await request.body())})

    async def flood(request: Request) -> Response:
        async def pieces() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    yield b"x" * 65536
                    await asyncio.sleep(0)
            finally:
                ended.append("flood")

        return Stream(pieces())

    async def ticks(request: Request) -> Response:
        async def pieces() -> AsyncGenerator[bytes, None]:
            try:
                while True:
                    yield b"data: 1\n\n"
                    await asyncio.sleep(0.01)  # real time: of a source that is slower than the connection
            finally:
                ended.append("ticks")

        return Stream(pieces())

    async def silence(request: Request) -> Response:
        async def pieces() -> AsyncGenerator[bytes, None]:
            try:
                yield b"data: 1\n\n"
                await asyncio.Event().wait()
            finally:
                ended.append("silence")

        return Stream(pieces())

    routes = (
        route("GET", "/hello", hello),
        route("POST", "/body", body, limit_bytes=LIMIT),
        route("GET", "/flood", flood),
        route("GET", "/silence", silence),
        route("GET", "/ticks", ticks),
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with app_of(*routes) as app:
            web = _Uvicorn(
                uvicorn.Config(
                    app, http=connection, ws="none", lifespan="off", log_config=None, timeout_keep_alive=1
                )
            )
            serving = asyncio.create_task(web.serve(sockets=[listener]))
            try:
                yield Listener(listener.getsockname()[1], app, ended)
            finally:
                app.end()
                web.should_exit = True
                await serving


def head_of(answer: bytes) -> tuple[int, dict[str, str]]:
    head = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    named = (line.partition(": ") for line in head[1:])
    return int(head[0].split(" ")[1]), {name: value for name, _, value in named}


def refusal(answer: bytes) -> tuple[int, str]:
    """Its status and code; and that it is a whole answer that says it is the last."""
    status, headers = head_of(answer)
    body = answer.partition(b"\r\n\r\n")[2]
    assert headers["connection"] == "close"
    assert int(headers["content-length"]) == len(body)
    plain = json.loads(body)
    assert plain["error"]["request_id"] == headers["x-request-id"]
    return status, plain["error"]["code"]


# -- bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"GET /hello HTTP/1.1\r\nhost: localhost\r\na: " + b"x" * 33_000, 431, id="one header"),
        pytest.param(b"GET /hello HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431, id="101 headers"),
        pytest.param(b"GET /hello HTTP/1.1\r\n" + b"x" * 40_000 + b": b\r\n\r\n", 431, id="one name"),
        pytest.param(b"GET /" + b"x" * 8_200 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 414, id="address"),
        pytest.param(b"GET /hello?" + b"x" * 8_200 + b" HTTP/1.1\r\n\r\n", 414, id="query"),
        pytest.param(b"GET /" + b"x" * 33_000, 431, id="an address without an end"),
        pytest.param(b"\r\n" * 20_000, 431, id="blank lines"),
        pytest.param(b"GET /hello HTTP/1.1\r\nhost: localhost\r\nbad header\r\n\r\n", 400, id="no header"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="HTTP/2"),
        pytest.param(b"hello\r\n\r\n", 400, id="no HTTP"),
        pytest.param(b"GET /a b HTTP/1.1\r\n\r\n", 400, id="a blank in the address"),
        pytest.param(b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n", 400, id="a byte in the address"),
        pytest.param(b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n", 400, id="CONNECT"),
        pytest.param(
            b"POST /body HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400, id="two lengths"
        ),
        pytest.param(
            b"POST /body HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            400,
            id="a length and chunks",
        ),
        pytest.param(b"POST /body HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400, id="no length"),
        pytest.param(b"POST /body HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400, id="a negative length"),
        pytest.param(
            b"POST /body HTTP/1.1\r\ncontent-length: " + b"9" * 40 + b"\r\n\r\n", 400, id="overflow"
        ),
        pytest.param(b"GET /hello HTTP/1.1\r\nhost: local\0host\r\n\r\n", 400, id="NUL in a header"),
    ],
)
async def test_an_invalid_or_oversized_header_is_rejected_with_our_error(sent: bytes, status: int) -> None:
    async with served() as listener:
        answer = await listener.send(sent)
        assert head_of(await listener.send(LAST))[0] == 200  # others do not notice
    assert refusal(answer) == (status, "invalid_request" if status == 400 else "too_large")


@pytest.mark.parametrize("together", [True, False])
async def test_a_malformed_body_is_rejected_with_our_error(together: bool) -> None:
    head = (
        b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    async with served() as listener:
        pieces = [head + b"2\r\n[]\r\nzz\r\n"] if together else [head + b"2\r\n[]\r\n", b"zz\r\n"]
        answer = await listener.send(*pieces)
        assert head_of(await listener.send(LAST))[0] == 200
    assert refusal(answer) == (400, "invalid_request")
    assert answer.count(b"x-request-id") == 1


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"GET /hello HTTP/1.1\r\nhost: localhost\r\na: ", id="a header without an end"),
        pytest.param(b"GET /hello HTTP/1.1\r\nhost: localhost\r\n", id="a name without an end"),
        pytest.param(b"GET /", id="an address without an end"),
        pytest.param(b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                     b"transfer-encoding: chunked\r\n\r\n0\r\na: ", id="a trailer without an end"),
        pytest.param(b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                     b"transfer-encoding: chunked\r\n\r\n1;", id="a chunk extension without an end"),
    ],
)  # fmt: skip
async def test_what_has_no_end_is_cut_off_soon(begin: bytes) -> None:
    async with served() as listener:
        wire = await listener.connect()
        wire.writer.write(begin)
        taken = await wire.send_until_cut(b"x" * 65536)
        await wire.close()
    assert taken < 20 * 1024 * 1024  # what fits into the sockets' own buffers


async def test_endless_trailers_are_cut_off_and_change_no_header() -> None:
    chunked = (
        b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n"
    )
    async with served() as listener:
        # A trailer with a second Host is read together with the head; it would be refused if it counted.
        wire = await listener.connect()
        await wire.send(chunked + b"host: evil.test\r\nhost: evil.test\r\n\r\n")
        assert b'{"bytes":2}' in await wire.until(b"}")
        await wire.send(chunked, *[b"a: b\r\n" * 10_000] * 100)
        await wire.rest()


async def test_a_length_that_is_too_short_never_reaches_into_the_answer() -> None:
    head = b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    async with served() as listener:
        answer = await listener.send(head + b'content-length: 2\r\n\r\n["more than two bytes"]')
        if answer:  # it may also just end
            first = answer.split(b"HTTP/1.1 ")[1]
            assert first.startswith((b"200", b"400"))
            assert answer.count(b"HTTP/1.1 400") <= 1
        wire = await listener.connect()
        await wire.send(b"GET /silence HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await wire.until(b"data: 1\n\n")
        await wire.send(b"this is no request\r\n\r\n")
        assert b"HTTP/1.1" not in await wire.rest()
        await _until(lambda: listener.streams == ["silence"])


# -- seconds -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", False),
        (b"G", True),
        (b"GET /hello HTTP/1.1\r\nhost: local", True),
        (b"GET /hello HTTP/1.1\r\nhost: localhost\r\n", True),
        (b"\r\n\r\n", True),
    ],
)
async def test_half_a_head_is_waited_for_only_so_long(sent: bytes, answered: bool) -> None:
    async with served(Impatient) as listener:
        answer = await listener.send(sent)
    assert refusal(answer) == (408, "invalid_request") if answered else answer == b""


async def test_a_head_that_drips_is_waited_for_no_longer() -> None:
    async with served(Impatient) as listener:
        wire = await listener.connect()

        async def drip() -> None:
            for byte in HELLO * 100:
                await wire.send(bytes([byte]))
                await asyncio.sleep(0.02)  # real time: of a slow client, until it is cut

        dripping = asyncio.create_task(drip())
        answer = await wire.rest()
        dripping.cancel()
        await asyncio.wait({dripping})
    assert refusal(answer) == (408, "invalid_request")


async def test_the_second_head_of_a_connection_is_waited_for_no_longer_than_the_first() -> None:
    async with served(Impatient) as listener:
        wire = await listener.connect()
        await wire.send(HELLO)
        await wire.until(b"}}")
        await wire.send(b"GET /hel")
        answer = await wire.rest()
    assert refusal(answer) == (408, "invalid_request")


async def test_an_answer_may_take_longer_than_a_head() -> None:
    async with served(Impatient) as listener:
        wire = await listener.connect()
        await wire.send(b"GET /silence HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await wire.until(b"data: 1\n\n")
        await listener.past_the_limit_of_a_head()
        assert listener.streams == []
        await wire.close()
        await _until(lambda: listener.streams == ["silence"])


@pytest.mark.parametrize("framing", [b"content-length: 45000", b"transfer-encoding: chunked"])
async def test_a_body_may_be_larger_and_slower_than_a_head(framing: bytes) -> None:
    head = (
        b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        + framing
        + b"\r\n\r\n"
    )
    piece = b"2328\r\n" + b"x" * 9000 + b"\r\n" if b"chunked" in framing else b"x" * 9000
    async with served(SlowBodies) as listener:
        wire = await listener.connect()
        await wire.send(head)
        for number in range(5):
            await wire.send(piece)
            if number < 2:
                await listener.past_the_limit_of_a_head()
        await wire.send(b"0\r\n\r\n" if b"chunked" in framing else b"")
        assert b'{"bytes":45000}' in await wire.until(b"}")
        await wire.close()


@pytest.mark.parametrize("framing", [b"content-length: 100000000", b"transfer-encoding: chunked"])
async def test_a_refused_body_is_not_read_for_ever(framing: bytes) -> None:
    """The answer comes at once; what the client still sends is thrown away for a while, then cut off."""
    head = (
        b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        + framing
        + b"\r\n\r\n"
    )
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n" if b"chunked" in framing else b"x" * 65536
    async with served(Impatient) as listener:
        wire = await listener.connect()
        await wire.send(head, piece, piece)
        assert b"413" in await wire.until(b"\r\n")
        await wire.send_until_cut(piece, pause=0.01)
        await wire.close()


async def test_after_a_refused_body_that_came_to_its_end_the_connection_is_good_for_more() -> None:
    body = b"x" * (LIMIT + 1)
    head = b"POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    async with served(Impatient) as listener:
        for next in (HELLO, b""):
            wire = await listener.connect()
            await wire.send(head + b"content-length: %d\r\n\r\n" % len(body), body[:-1])
            assert b"413" in await wire.until(b"\r\n")
            await wire.send(body[-1:], next)
            assert (b"HTTP/1.1 200" in await wire.rest()) is bool(next)  # idle, it ends by itself


async def test_clients_that_do_not_read_are_disconnected() -> None:
    async with served(Impatient) as listener:
        wire = await listener.connect()
        await wire.send(b"GET /flood HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await wire.until(b"\r\n\r\n")
        transport = wire.writer.transport
        assert isinstance(transport, asyncio.ReadTransport)
        transport.pause_reading()
        await _until(lambda: listener.streams == ["flood"])
        await _until(lambda: listener.app.running == 0)
        await wire.close()


async def test_a_client_with_two_requests_on_its_way_may_leave_like_any_other() -> None:
    async with served() as listener:
        wire = await listener.connect()
        await wire.send(b"GET /ticks HTTP/1.1\r\nhost: localhost\r\n\r\n" + HELLO)
        await wire.until(b"data: 1\n\n")
        await wire.close()
        await _until(lambda: listener.streams == ["ticks"])
        await _until(lambda: listener.app.running == 0)


async def _until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not what():
            await asyncio.sleep(0.01)
