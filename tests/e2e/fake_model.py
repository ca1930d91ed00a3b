"""A model server on a loopback socket, shared by many tests: a word in the last user message says whose
request it is. It answers, refuses, breaks off, and stops at gates until a test opens them."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

SECONDS = 60.0


class Gate:
    """A place in an answer: nothing more comes until a test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def until_reached(self) -> None:
        assert self.reached.wait(SECONDS), "nobody asked the model"

    def open(self) -> None:
        self.opened.set()


@dataclass(frozen=True)
class Reply:
    """`cut`: the connection ends where the answer does not."""

    pieces: Sequence[bytes | Gate]
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    cut: bool = False


def says(
    *texts: str | Gate,
    finish: str = "stop",
    calls: Sequence[tuple[str, str, str]] = (),
    usage: tuple[int, int] = (11, 7),
    cached: tuple[int, int] = (0, 0),
) -> Reply:
    """An answer in as many pieces as there are texts; `calls` are (id, name, arguments). `cached`: of the
    input tokens, those read from the cache and those written to it."""
    pieces: list[bytes | Gate] = [
        text if isinstance(text, Gate) else _chunk({"content": text}) for text in texts
    ]
    for index, (id, name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": arguments}
        pieces.append(
            _chunk({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
        )
    pieces.append(_chunk({}, "tool_calls" if calls else finish))
    received = {
        "prompt_tokens": usage[0],
        "completion_tokens": usage[1],
        "total_tokens": sum(usage),
        "prompt_tokens_details": {"cached_tokens": cached[0], "cache_write_tokens": cached[1]},
    }
    pieces.append(_data({"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": received}))
    return Reply([*pieces, b"data: [DONE]\n\n"])


def responds(*output: dict[str, Any]) -> Reply:
    """The same in the Responses API, with these items."""
    whole = {"object": "response", "status": "completed", "output": output}
    items: list[dict[str, Any]] = [{"type": "response.output_item.done", "item": item} for item in output]
    events = [*items, {"type": "response.completed", "response": whole}]
    return Reply([f"event: {one['type']}\n".encode() + _data(one) for one in events])


def breaks_off_after(*texts: str | Gate) -> Reply:
    whole = says(*texts)
    return Reply(whole.pieces[: len(texts)], cut=True)


def refuses(
    status: int, message: str = "no", *, headers: dict[str, str] | None = None, **error: str
) -> Reply:
    body = json.dumps({"error": {"message": message, **error}}).encode()
    return Reply([body], status, {"Content-Type": "application/json", **(headers or {})})


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _data({"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})


def _data(plain: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(plain).encode() + b"\n\n"


@dataclass
class Script:
    """What is answered to the requests with one word, in order; and these requests. The last reply stays."""

    replies: deque[Reply]
    requests: list[dict[str, Any]] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)  # the asker broke off

    def then(self, *replies: Reply) -> None:
        self.replies = deque(replies)

    @property
    def prompts(self) -> list[list[tuple[str, Any]]]:
        """Who said what; system messages are left out."""
        return [
            [(said["role"], said["content"]) for said in one["messages"] if said["role"] != "system"]
            for one in self.requests
        ]


class FakeModel:
    def __init__(self) -> None:
        self._scripts: dict[str, Script] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._scripts))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for script in self._scripts.values():
            for reply in script.replies:
                for piece in reply.pieces:
                    if isinstance(piece, Gate):
                        piece.open()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def on(self, word: str, *replies: Reply) -> Script:
        script = self._scripts[word] = Script(deque(replies))
        return script


def _handler(scripts: dict[str, Script]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            script = _meant(scripts, body)
            reply = script.replies.popleft() if len(script.replies) > 1 else script.replies[0]
            script.requests.append(body)
            self.close_connection = True
            try:
                self._answer(reply, script)
            except OSError:
                script.gone.set()

        def _answer(self, reply: Reply, script: Script) -> None:
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.send_header("Connection", "close")
            self.end_headers()
            for piece in reply.pieces:
                if isinstance(piece, Gate):
                    piece.reached.set()
                    if not _until_open(piece, self.connection):
                        script.gone.set()
                        return
                else:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if not reply.cut:
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def _meant(scripts: dict[str, Script], body: dict[str, Any]) -> Script:
    asked = body.get("messages") or body["input"]  # of a chat completion, or of the Responses API
    said = [message["content"] for message in asked if message.get("role") == "user"]
    last = said[-1] if isinstance(said[-1], str) else json.dumps(said[-1])
    return next(script for word, script in scripts.items() if word in last)


def _until_open(gate: Gate, connection: socket.socket) -> bool:
    """False: the asker has gone."""
    while not gate.opened.wait(0.01):
        readable, _, _ = select.select([connection], [], [], 0)
        if readable and not connection.recv(1, socket.MSG_PEEK):
            return False
    return True
