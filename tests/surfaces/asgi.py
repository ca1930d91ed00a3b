"""An app without a server around it: requests go in as messages, answers come out as messages."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lastgood.surfaces.http.access import AccessControl
from lastgood.surfaces.http.app import AnsweredRequest, App, Route
from lastgood.surfaces.http.asgi import Handler
from lastgood.surfaces.routes import DIALECTS

HOST = "127.0.0.1:8080"
SECONDS = 60.0


@dataclass
class Given:
    """What came back so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_whole: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Client:
    """Sends one request, piece by piece, and may leave at any time. `stops`: there should be more of it."""

    def __init__(
        self,
        app: App,
        method: str,
        path: str,
        headers: Sequence[tuple[str, str]] | Mapping[str, str] = (),
        pieces: Sequence[bytes] = (b"",),
        *,
        stops: bool = False,
    ) -> None:
        named = list(headers.items() if isinstance(headers, Mapping) else headers)
        if not any(name == "host" for name, _ in named):
            named.append(("host", HOST))
        self.given = Given()
        self._left = asyncio.Event()
        self._moved = asyncio.Event()
        self.unread = list(pieces)
        self._stops = stops
        raw, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": raw,
            "raw_path": raw.encode("latin-1"),
            "query_string": query.encode("latin-1"),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named],
            "client": ("10.1.2.3", 4711),
        }
        self.task = asyncio.create_task(self._run(app, scope))

    async def _run(self, app: App, scope: dict[str, Any]) -> None:
        await app(scope, self._receive, self._send)

    async def _receive(self) -> MutableMapping[str, Any]:
        if self.unread:
            piece = self.unread.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self.unread) or self._stops}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.given.status = message["status"]
            self.given.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.given.body += message.get("body", b"")
            self.given.is_whole = not message.get("more_body", False)
        self._moved.set()

    def leave(self) -> None:
        self._left.set()

    async def until(self, text: bytes) -> None:
        """Until this came."""
        async with asyncio.timeout(SECONDS):
            while text not in self.given.body:
                self._moved.clear()
                await self._moved.wait()

    async def end(self) -> Given:
        async with asyncio.timeout(SECONDS):
            await self.task
        return self.given


async def ask(
    app: App,
    method: str,
    path: str,
    headers: Sequence[tuple[str, str]] | Mapping[str, str] = (),
    body: bytes | Sequence[bytes] = b"",
) -> Given:
    client = Client(app, method, path, headers, [body] if isinstance(body, bytes) else body)
    try:
        return await client.end()
    finally:
        client.leave()


async def post(app: App, path: str, body: bytes | Sequence[bytes], **headers: str) -> Given:
    named = {"content-type": "application/json", "transfer-encoding": "chunked"}
    return await ask(
        app, "POST", path, named | {name.replace("_", "-"): value for name, value in headers.items()}, body
    )


ACCESS = AccessControl(frozenset({"127.0.0.1", "localhost"}), frozenset(), None)


@asynccontextmanager
async def app_of(
    *routes: Route,
    access: AccessControl = ACCESS,
    seen: list[AnsweredRequest] | None = None,
    ping_seconds: float = 15.0,
) -> AsyncIterator[App]:
    """Judged at its end: nothing of it is still running."""
    before = asyncio.all_tasks()
    yield App(
        routes,
        access,
        on_seen=(seen if seen is not None else []).append,
        dialects=DIALECTS,
        ping_seconds=ping_seconds,
    )
    assert asyncio.all_tasks() == before


def route(method: str, path: str, handler: Handler, **more: Any) -> Route:
    return Route(method, path, handler, more.pop("scope", None), "", **more)
