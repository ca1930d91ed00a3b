"""A receiver of webhooks that answers, fails, hangs or lies, and remembers what it got."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Got:
    path: str
    id: str
    timestamp: str
    signature: str
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    @property
    def kind(self) -> str:
        return str(self.json["type"])

    def is_signed_with(self, secret: str) -> bool:
        """As a receiver would check it, without our own code."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        signed = f"{self.id}.{self.timestamp}.".encode() + self.body
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return hmac.compare_digest(f"v1,{expected}", self.signature)


Behaviour = Callable[["WebhookReceiver", BaseHTTPRequestHandler], None]


def answers(status: int) -> Behaviour:
    def behave(_: WebhookReceiver, handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return behave


def hangs(receiver: WebhookReceiver, handler: BaseHTTPRequestHandler) -> None:
    receiver.closing.wait()
    handler.close_connection = True


def redirects(receiver: WebhookReceiver, handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(307)
    handler.send_header("Location", f"{receiver.url}/elsewhere")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def floods(receiver: WebhookReceiver, handler: BaseHTTPRequestHandler) -> None:
    """A good status, and a body without end."""
    handler.send_response(200)
    handler.end_headers()
    try:
        while not receiver.closing.is_set():
            handler.wfile.write(b"x" * 65536)
    except OSError:
        receiver.cut.set()
    handler.close_connection = True


class WebhookReceiver:
    def __init__(self, behave: Behaviour | None = None) -> None:
        self.behave = behave or answers(204)
        self.got: list[Got] = []
        self.closing, self.cut = threading.Event(), threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                id, at, signature = (
                    self.headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature")
                )
                receiver.got.append(Got(self.path, id, at, signature, body))
                receiver.behave(receiver, self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
