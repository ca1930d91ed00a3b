"""HTTP over ASGI, as little of it as the surfaces need; `responses.py` sends what they return.

Written for three things that frameworks make hard: a path whose segments may hold
an escaped URL, limits that act on bytes read, and handlers that learn at once when
their client has gone or the server has to end. Knows no route and no session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import orjson

from lastgood.core.limits import IMPORT_VALUES
from lastgood.errors import InvalidRequest, ShuttingDown, TooLarge
from lastgood.model.tickets import StreamTicket
from lastgood.surfaces.http.json_body import check_values, parse_document, parse_json
from lastgood.surfaces.http.principal import ANYBODY, Principal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"

#: How long a body may pause, and how long it may take in all.
BODY_PAUSE_SECONDS = 30.0
BODY_SECONDS = 300.0

#: How a connection offers to be ended in the middle of an answer, in the extensions of a scope.
ABORT = "lastgood.abort"

#: Where a second one with the same name would let two readers of a request read two requests.
_ONCE = frozenset(
    {"host", "origin", "authorization", "content-type", "content-encoding"}
    | {"idempotency-key", "if-match", "if-none-match", "last-event-id", "x-user-id"}
    | {"x-conversation-id", "x-conversation-mode", "x-openwebui-chat-id"}
)

_T = TypeVar("_T")


async def _nothing() -> None:
    return


class ClientGone(Exception):
    """The client has disconnected."""


class Broken(Exception):
    """A stream that fails. `reply` is the response if it has not begun, `last` its last frame if it has."""

    def __init__(self, reply: Reply, last: bytes, code: str) -> None:
        super().__init__(reply, last, code)
        self.reply = reply
        self.last = last
        self.code = code


@dataclass(slots=True)
class Request:
    method: str
    raw_path: str
    query_string: str
    headers: Mapping[str, str]  # names in lower case; of several with one name, the last
    peer: str
    id: str
    receive: Receive
    ending: asyncio.Future[None]  # done: the server ends, and this request with it
    repeated: frozenset[str] = frozenset()  # names of headers that came more than once
    limit_bytes: int = 0
    is_from_proxy: bool = False  # sent by a trusted proxy, and not only with a header that says so
    ticket: StreamTicket | None = None  # that authenticated the request
    caller: Principal = ANYBODY
    path: Mapping[str, str] = field(default_factory=dict)  # what the route's holes were filled with
    #: Raises the error that a new request would get now: tokens may expire while streams are open.
    check_caller: Callable[[], Awaitable[object]] = field(default=lambda: _nothing())
    #: Ends the connection at once, in the middle of whatever is being sent.
    abort: Callable[[], None] = field(default=lambda: None)
    #: The code of the error that its response ended with, for logs.
    failure: str = ""
    _read: bytes | None = None

    @property
    def query(self) -> dict[str, str]:
        """Of several with one name, the last."""
        pairs = dict(parse_qsl(self.query_string, keep_blank_values=True))
        if any("\0" in name + value for name, value in pairs.items()):
            raise InvalidRequest("The query string contains a NUL character; remove it")
        return pairs

    def check(self) -> None:
        """That it can be read in one way only."""
        twice = sorted(_ONCE & self.repeated)
        if twice:
            raise InvalidRequest(f"Duplicate header `{twice[0].title()}`; send it once")

    async def body(self) -> bytes:
        if self._read is None:
            length = self.headers.get("content-length", "")
            if length.isdecimal() and int(length[:19]) > self.limit_bytes:
                raise self._too_large()
            try:
                self._read = await self._read_body()
            except TimeoutError:
                raise InvalidRequest("Timed out reading the request body; send the request again") from None
        return self._read

    async def _read_body(self) -> bytes:
        """However long it is said to be: what counts is what came."""
        now = asyncio.get_running_loop().time
        ends = now() + BODY_SECONDS
        pieces: list[bytes] = []
        size = 0
        more = True
        while more:
            async with asyncio.timeout_at(min(ends, now() + BODY_PAUSE_SECONDS)):
                message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size += len(piece)
            if size > self.limit_bytes:
                raise self._too_large()
            pieces.append(piece)
            more = message.get("more_body", False)
        return b"".join(pieces)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"Request body exceeds {self.limit_bytes} bytes; send less")

    async def json(self) -> Any:
        """Any JSON value; of several keys with one name, the last. Else InvalidRequest."""
        body = await self.body()
        await check_values(body)
        return parse_json(body)

    async def document(self) -> Any:
        """As `json`, for an export: it may hold far more values, and is parsed in slices."""
        body = await self.body()
        await check_values(body, IMPORT_VALUES)
        return await parse_document(body)

    async def unless_gone(self, work: Awaitable[_T]) -> _T:
        """Returns the result of `work`. Raises ClientGone if the client disconnects, ShuttingDown if it may
        not end: then the work is cancelled, and has stopped when this returns."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(until_gone(self.receive))
        try:
            await first_of(working, leaving, self.ending)
            if working.done():
                return working.result()
            raise ClientGone if leaving.done() else ShuttingDown()
        finally:
            await stop(leaving)
            await stop(working)


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    type: str = JSON


@dataclass(frozen=True, slots=True)
class Stream:
    """Pieces as they come. The generator is closed when the client has gone, so it can clean up.

    With `patience_seconds` it begins when there is a piece, or when that time is over: what fails
    before can be reported by a status. Its first piece is preceded by `opening`.
    """

    pieces: AsyncGenerator[bytes, None]
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    type: str = SSE
    opening: bytes = b""
    patience_seconds: float = 0.0
    only_watches: bool = False  # it only watches: at shutdown it ends as soon as nothing runs any more
    #: One document, not frames: no heartbeats, and an error aborts the connection, because a body that ends
    #: normally would look complete.
    is_document: bool = False
    #: Raises if the client may not read it any more.
    check: Callable[[], Awaitable[object]] | None = None


Response = Reply | Stream
Handler = Callable[[Request], Awaitable[Response]]


def json_reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, orjson.dumps(value), headers or {})


#: In the scope of a request that a trusted proxy has sent.
FROM_PROXY = "lastgood.from_proxy"


def request_of(scope: Scope, receive: Receive, id: str, ending: asyncio.Future[None]) -> Request:
    headers: dict[str, str] = {}
    repeated: set[str] = set()
    for raw_name, value in scope["headers"]:
        name = raw_name.decode("latin-1")
        if name in headers:
            repeated.add(name)
        headers[name] = value.decode("latin-1")
    raw = scope.get("raw_path") or scope["path"].encode()
    client = scope.get("client")
    return Request(
        method=scope["method"],
        raw_path=raw.partition(b"?")[0].decode("latin-1"),
        query_string=scope["query_string"].decode("latin-1"),
        headers=headers,
        peer=client[0] if client else "",
        is_from_proxy=bool(scope.get(FROM_PROXY)),
        id=id,
        receive=receive,
        ending=ending,
        repeated=frozenset(repeated),
        abort=scope.get("extensions", {}).get(ABORT, lambda: None),
    )


def segments(raw_path: str) -> tuple[str, ...]:
    """Split where slashes are, then decoded once: an escaped slash is part of its segment."""
    return tuple(unquote(segment) for segment in raw_path.split("/")[1:])


# -- waiting for the end of a request -----------------------------------------------------


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def stop(task: asyncio.Future[Any]) -> None:
    """Cancelled, and waited for: what it holds is free afterwards."""
    if not task.done():
        task.cancel()
        await first_of(task)


async def first_of(*futures: asyncio.Future[Any]) -> None:
    """Returns when one of them is done. Every stream waits twice, and asyncio.wait builds sets each time."""
    waiter = asyncio.get_running_loop().create_future()

    def wake(_: asyncio.Future[Any]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    for future in futures:
        future.add_done_callback(wake)
    try:
        await waiter
    finally:
        for future in futures:
            future.remove_done_callback(wake)
