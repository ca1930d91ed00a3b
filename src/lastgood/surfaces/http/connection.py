"""One connection: uvicorn's, with the bounds that it lacks.

A client may send nothing, half a head, a head without an end, a body that nobody reads, or never read the
response. Each of these is bounded here in bytes and in seconds, and errors get a response of ours if one can
still be sent. The limits of bodies are applied where they are read.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from lastgood.errors import InvalidRequest, LastgoodError, TooLarge
from lastgood.surfaces.http import error_responses
from lastgood.surfaces.http.asgi import ABORT

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application


class _Refused(Exception):
    """The parser stops here; the answer is already settled."""


class HttpConnection(HttpToolsProtocol):
    #: Of a request line and its headers, and of anything else that is not a body.
    head_bytes = 32 * 1024
    url_bytes = 8 * 1024
    most_headers = 100
    #: From the first byte of a head, or from the connection's start, to the head's end.
    head_seconds = 20.0
    #: How long the rest of a body is read and thrown away after its request was answered.
    linger_seconds = 5.0
    #: How long a client may read nothing while there is something for it.
    stall_seconds = 60.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._answering: RequestResponseCycle | None = None
        self._refusal: tuple[int, LastgoodError] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._in_head = True
        self._in_body = False
        self._moved = False  # the parser got somewhere with the last piece
        self._loose = 0  # bytes that came since it did

    # -- bytes ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._in_head and self._deadline is None:
            self._end_in(self.head_seconds, self._too_slow)
        self._moved = False
        super().data_received(data)
        # Heads, trailers, chunk extensions, blank lines before a request: what has no end is
        # what the parser reads on and on without coming to anything.
        self._loose = 0 if self._moved else self._loose + len(data)
        if self._loose > self.head_bytes and not self.transport.is_closing():
            self._refuse(431, self._too_much())

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come after a request was judged by its headers, and must not change them.
        if not self._in_head:
            return
        if len(self.headers) >= self.most_headers:
            self._give_up(431, TooLarge(f"Request has more than {self.most_headers} headers; send fewer"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._moved, self._in_head, self._in_body = True, False, True
        self._cancel_deadline()
        if len(self.url) > self.url_bytes:
            self._give_up(414, TooLarge(f"Request URL exceeds {self.url_bytes} bytes; shorten it"))
        if sum(len(name) + len(value) for name, value in self.headers) > self.head_bytes:
            self._give_up(431, self._too_much())
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._moved, self._in_head, self._in_body = True, True, False
        self._cancel_deadline()
        super().on_message_complete()
        if self.cycle.response_complete:
            # The wait for the next request began with the answer, and what came since has ended it.
            self._end_in(self.head_seconds, self._too_slow)

    # -- seconds -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        own = transport.get_extra_info("socket")
        if own is not None and own.family == socket.AF_UNIX:
            self.client = "unix", 0  # also whom --trusted-proxy may name
        self._end_in(self.head_seconds, self._too_slow)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_body and self.cycle.response_complete and not self.transport.is_closing():
            # Closed at once, the client might never read why; read forever, it might never end.
            self._end_in(self.linger_seconds, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _end_in(self, seconds: float, end: Any) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, end)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        if self._loose:
            self._refuse(408, InvalidRequest("Timed out reading the request; send it again"))
        else:
            self.transport.close()  # there was no request

    # -- the end -------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        extensions: dict[str, Any] = {ABORT: self.transport.abort}
        cycle.scope["extensions"] = extensions
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        super().connection_lost(exc)
        # With a second request behind it, the request in progress would not notice the disconnect.
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()

    def send_400_response(self, msg: str) -> None:
        """The parser stopped: the input is malformed, or a limit was exceeded."""
        status, error = self._refusal or (400, InvalidRequest("Malformed HTTP/1.1 request"))
        self._refuse(status, error)

    def _give_up(self, status: int, error: LastgoodError) -> None:
        """From inside the parser, which then reads no further."""
        self._refusal = status, error
        raise _Refused

    def _too_much(self) -> TooLarge:
        return TooLarge(f"Request headers exceed {self.head_bytes} bytes; send less")

    def _refuse(self, status: int, error: LastgoodError) -> None:
        answering = self._answering
        if answering is None or answering.response_complete or self._is_body_of(answering):
            self._write_refusal(status, error)
        # Else another answer is on its way: nothing may be written into the middle of it.
        self.transport.close()

    def _is_body_of(self, answering: RequestResponseCycle) -> bool:
        """Whether the malformed bytes are the body of the request that waits for its response. Its handler,
        which reads the body, then sees a disconnect, and the refusal is the response."""
        if not self._in_body or self.cycle is not answering or answering.response_started:
            return False
        answering.disconnected = True
        answering.message_event.set()
        return True

    def _write_refusal(self, status: int, error: LastgoodError) -> None:
        id = secrets.token_hex(8)
        reply = error_responses.plain(error, id)
        headers = {
            "content-type": reply.type,
            "content-length": str(len(reply.body)),
            "connection": "close",
            "x-request-id": id,
            **reply.headers,
        }
        lines = [f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items()]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", reply.body]))
