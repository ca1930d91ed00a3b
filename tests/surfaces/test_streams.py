"""Streams: they say something in silence, and how they ended; nothing of them stays behind (I25)."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

from lastgood.errors import ModelError, ShuttingDown
from lastgood.surfaces.http import responses
from lastgood.surfaces.http.app import AnsweredRequest, ResponseEnd, Route
from lastgood.surfaces.http.asgi import Broken, Reply, Request, Response, Stream
from tests.faults.virtual_loop import VirtualLoop, run_virtually
from tests.surfaces.asgi import Client, Given, app_of, route

pytestmark = pytest.mark.anyio


class Source:
    """A stream that says what it is given, until it is told that there is no more."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.closed = asyncio.Event()

    def route(self, path: str = "/stream", **more: Any) -> Route:
        async def handler(request: Request) -> Response:
            return Stream(self._pieces(), {"x-mine": "1"}, **more)

        return route("GET", path, handler)

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        try:
            while (said := await self.says.get()) is not None:
                if isinstance(said, Exception):
                    raise said
                yield said
        finally:
            await asyncio.sleep(0)  # leaving takes a moment
            self.closed.set()


def frames(given: Given) -> list[str]:
    assert given.is_whole
    *whole, rest = given.body.decode().split("\n\n")
    assert rest == ""
    return whole


async def test_a_stream_passes_on_what_comes_and_ends() -> None:
    source, seen = Source(), list[AnsweredRequest]()
    async with app_of(source.route(), seen=seen) as app:
        client = Client(app, "GET", "/stream")
        source.says.put_nowait(b"data: 1\n\n")
        await client.until(b"data: 1\n\n")
        assert not client.given.is_whole
        source.says.put_nowait(b"data: 2\n\n")
        source.says.put_nowait(None)
        given = await client.end()
        client.leave()
    assert (given.status, frames(given)) == (200, ["data: 1", "data: 2"])
    assert given.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert given.headers["x-accel-buffering"] == "no"
    assert given.headers["cache-control"] == "no-store"
    assert given.headers["x-mine"] == "1"
    assert [(one.status, one.ended) for one in seen] == [(200, ResponseEnd.SENT)]


async def test_silence_is_filled_with_comments_and_frames_are_never_mixed() -> None:
    source = Source()
    async with app_of(source.route(), ping_seconds=0.01) as app:
        client = Client(app, "GET", "/stream")
        await client.until(b": ping\n\n: ping\n\n")
        source.says.put_nowait(b"data: 1\n\n")
        await client.until(b"data: 1\n\n: ping\n\n")
        source.says.put_nowait(None)
        given = await client.end()
        client.leave()
    assert set(frames(given)) == {": ping", "data: 1"}


def test_no_comment_comes_while_there_is_something_to_say() -> None:
    async def stream(_: VirtualLoop) -> Given:
        source = Source()
        async with app_of(source.route(), ping_seconds=15.0) as app:
            client = Client(app, "GET", "/stream")
            for number in range(8):
                source.says.put_nowait(b"data: %d\n\n" % number)
                await client.until(b"data: %d\n\n" % number)
                await asyncio.sleep(14.0)  # virtual time
            await asyncio.sleep(2.0)  # virtual time
            source.says.put_nowait(None)
            given = await client.end()
            client.leave()
            return given

    *said, last = frames(run_virtually(stream))
    assert said == [f"data: {number}" for number in range(8)]
    assert last == ": ping"


async def test_a_client_that_leaves_closes_the_stream_before_the_request_ends() -> None:
    source, seen = Source(), list[AnsweredRequest]()
    async with app_of(source.route(), seen=seen) as app:
        client = Client(app, "GET", "/stream")
        source.says.put_nowait(b"data: 1\n\n")
        await client.until(b"data: 1")
        assert app.running == 1
        client.leave()
        given = await client.end()
        assert source.closed.is_set()
        assert app.running == 0
    assert not given.is_whole
    assert [(one.status, one.ended) for one in seen] == [(200, ResponseEnd.LEFT)]


@pytest.mark.parametrize("path", ["/stream", "/v1/stream"])
async def test_the_servers_end_is_the_last_frame_of_a_stream(path: str) -> None:
    """Never a cut connection, and never what could be taken for a good end."""
    source, seen = Source(), list[AnsweredRequest]()
    async with app_of(source.route(path), seen=seen) as app:
        client = Client(app, "GET", path)
        source.says.put_nowait(b"data: 1\n\n")
        await client.until(b"data: 1")
        app.end()
        given = await client.end()
        client.leave()
        assert source.closed.is_set()
    first, last = frames(given)
    assert first == "data: 1"
    received = json.loads(last.removeprefix("data: "))
    if path.startswith("/v1/"):
        assert set(received) == {"error"}
        assert received["error"]["code"] == "shutting_down"
    else:  # an event like any other, but for its number
        assert (received["type"], received["code"]) == ("error", "shutting_down")
        assert received["error"] == received["message"] == str(ShuttingDown())
        assert received["request_id"] == seen[0].request.id
    assert seen[0].ended is ResponseEnd.BROKEN


async def test_where_frames_have_names_the_last_one_has_too() -> None:
    source = Source()
    async with app_of(source.route()) as app:
        client = Client(app, "GET", "/stream?named=1")
        source.says.put_nowait(RuntimeError())
        given = await client.end()
        client.leave()
    name, data = frames(given)[-1].split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["code"] == "internal_error"


async def test_a_stream_that_begins_after_the_servers_end_still_cleans_up() -> None:
    source = Source()
    async with app_of(source.route()) as app:
        app.end()
        client = Client(app, "GET", "/stream")
        given = await client.end()
        client.leave()
        assert source.closed.is_set()
    assert "shutting_down" in frames(given)[-1]


SECRET = "what the user said"


@pytest.mark.parametrize(
    ("error", "code"),
    [(ModelError("it broke"), "model_error"), (RuntimeError(SECRET), "internal_error")],
)
async def test_an_error_in_mid_stream_is_its_last_frame(
    error: Exception, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, seen = Source(), list[AnsweredRequest]()
    async with app_of(source.route("/v1/stream"), seen=seen) as app:
        client = Client(app, "GET", "/v1/stream")
        source.says.put_nowait(b"data: 1\n\n")
        source.says.put_nowait(error)
        with caplog.at_level(logging.DEBUG):
            given = await client.end()
        client.leave()
    last = frames(given)[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == code
    assert SECRET not in given.body.decode()
    assert seen[0].ended is ResponseEnd.BROKEN
    logged = [record.fields["request_id"] for record in caplog.records if hasattr(record, "fields")]
    assert logged == ([seen[0].request.id] if code == "internal_error" else [])


async def test_idle_is_when_the_last_request_is_answered() -> None:
    source = Source()
    async with app_of(source.route()) as app:
        await app.until_idle(0.01)
        client = Client(app, "GET", "/stream")
        source.says.put_nowait(b"data: 1\n\n")
        await client.until(b"data: 1")
        waiting = asyncio.create_task(app.until_idle(10.0))
        await app.until_idle(0.01)  # its time ends before the stream does
        assert not waiting.done()
        source.says.put_nowait(None)
        await client.end()
        client.leave()
        await waiting


# -- streams that begin when there is something to say ---------------------------------------

#: Longer than any test takes.
PATIENT: dict[str, Any] = {"opening": b"data: 0\n\n", "patience_seconds": 60.0}
BROKEN = Broken(Reply(502, b"{}", {"x-why": "broken"}), b"data: broken\n\n", "model_error")


def test_a_patient_stream_begins_with_its_first_piece() -> None:
    async def stream(_: VirtualLoop) -> Given:
        source = Source()
        async with app_of(source.route(**PATIENT), ping_seconds=15.0) as app:
            client = Client(app, "GET", "/stream")
            await asyncio.sleep(55.0)  # virtual time
            assert client.given.status == 0  # no heartbeat either
            source.says.put_nowait(b"data: 1\n\n")
            source.says.put_nowait(None)
            given = await client.end()
            client.leave()
            return given

    given = run_virtually(stream)
    assert (given.status, frames(given)[:2]) == (200, ["data: 0", "data: 1"])


async def test_a_patient_stream_without_a_piece_is_whole_all_the_same() -> None:
    source = Source()
    async with app_of(source.route(**PATIENT)) as app:
        source.says.put_nowait(None)
        client = Client(app, "GET", "/stream")
        given = await client.end()
        client.leave()
    assert (given.status, frames(given)) == (200, ["data: 0"])


@pytest.mark.parametrize(
    ("error", "status"), [(BROKEN, 502), (ModelError("it broke"), 500), (RuntimeError("secret"), 500)]
)
async def test_an_error_before_a_stream_begins_is_a_status(error: Exception, status: int) -> None:
    source, seen = Source(), list[AnsweredRequest]()
    async with app_of(source.route(**PATIENT), seen=seen) as app:
        source.says.put_nowait(error)
        client = Client(app, "GET", "/stream")
        given = await client.end()
        client.leave()
        assert source.closed.is_set()
    assert given.is_whole
    assert given.status == status
    assert given.headers["content-type"] == "application/json"
    assert b"secret" not in given.body
    assert [(one.status, one.ended) for one in seen] == [(status, ResponseEnd.SENT)]


async def test_after_its_patience_a_stream_begins_and_what_breaks_it_is_its_last_frame() -> None:
    source, seen = Source(), list[AnsweredRequest]()
    async with app_of(source.route(**PATIENT | {"patience_seconds": 0.01}), seen=seen) as app:
        client = Client(app, "GET", "/stream")
        await client.until(b"data: 0\n\n")
        source.says.put_nowait(BROKEN)
        given = await client.end()
        client.leave()
    assert (given.status, frames(given)) == (200, ["data: 0", "data: broken"])
    assert [(one.status, one.ended) for one in seen] == [(200, ResponseEnd.BROKEN)]


async def test_a_client_that_leaves_before_a_stream_begins_closes_it() -> None:
    source, seen = Source(), list[AnsweredRequest]()
    async with app_of(source.route(**PATIENT), seen=seen) as app:
        client = Client(app, "GET", "/stream")
        await asyncio.sleep(0)
        client.leave()
        given = await client.end()
        assert source.closed.is_set()
    assert given.status == 0
    assert [(one.status, one.ended) for one in seen] == [(499, ResponseEnd.LEFT)]


async def test_a_shutdown_before_a_stream_begins_is_a_status() -> None:
    source = Source()
    async with app_of(source.route(**PATIENT)) as app:
        client = Client(app, "GET", "/stream")
        await asyncio.sleep(0)
        app.end()
        given = await client.end()
        client.leave()
        assert source.closed.is_set()
    assert (given.status, given.code) == (503, "shutting_down")


class Deaf(Client):
    """Takes the beginning of a stream and then no byte more, without leaving."""

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if self.given.body:
            await asyncio.Event().wait()
        await super()._send(message)


async def test_I23_only_the_client_that_does_not_read_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(responses, "STUCK_SECONDS", 0.05)
    slow, quick, seen = Source(), Source(), list[AnsweredRequest]()
    async with app_of(slow.route("/slow"), quick.route("/quick"), seen=seen, ping_seconds=0.01) as app:
        deaf, other = Deaf(app, "GET", "/slow"), Client(app, "GET", "/quick")
        for source in (slow, quick):
            source.says.put_nowait(b"data: 1\n\n")
        await deaf.end()
        assert slow.closed.is_set()
        assert [(one.route.path, one.ended) for one in seen if one.route] == [("/slow", ResponseEnd.LEFT)]
        quick.says.put_nowait(b"data: 2\n\n")
        quick.says.put_nowait(None)
        given = await other.end()
        other.leave()
        deaf.leave()
    assert given.is_whole
    assert b"data: 2" in given.body
