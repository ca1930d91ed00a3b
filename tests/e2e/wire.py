"""The server's HTTP as bytes: requests without an SDK's help, streams as frames."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.e2e.command import AGENT, SECONDS
from tests.e2e.server import LiveServer

DONE = "[DONE]"


class Served(LiveServer):
    """One that can also be waited for, and looked at by its process id."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def ended(self) -> int:
        """Its exit code, when it has ended by itself."""
        assert self._process is not None
        process, self._process = self._process, None
        return await asyncio.to_thread(process.wait, SECONDS)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Everything after the greeting is JSON, or this fails."""
        lines = self.stderr.read_text().splitlines()
        begin = next(number for number, line in enumerate(lines) if line.startswith("{"))
        return [json.loads(line) for line in lines[begin:]]

    def requests(self) -> list[dict[str, Any]]:
        return [line for line in self.log if line["message"] == "request"]


def turn(text: str, *, stream: bool = False, model: str = AGENT) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream}


@dataclass
class Given:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class Followed:
    """A stream as it comes: the data of its frames, and whether the connection ended as HTTP says it must."""

    frames: list[str] = field(default_factory=list)
    comments: int = 0
    is_whole: bool = False

    @property
    def text(self) -> str:
        chunks = [json.loads(frame) for frame in self.frames if frame != DONE]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", [])]
        return "".join(delta.get("content") or "" for delta in deltas)

    @property
    def error(self) -> str | None:
        """The code in the last frame."""
        last = json.loads(self.frames[-1]) if self.frames and self.frames[-1] != DONE else {}
        return str(last["error"]["code"]) if "error" in last else None


class Wire:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def ask(self, method: str, path: str, plain: object = None, **headers: str) -> Given:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        kwargs: dict[str, Any] = {} if plain is None else {"json": plain}
        async with self._session.request(method, self._url + path, headers=named, **kwargs) as answer:
            return Given(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, **headers: str) -> Given:
        return await self.ask("GET", path, **headers)

    async def say(self, text: str, **headers: str) -> Given:
        return await self.ask("POST", "/v1/chat/completions", turn(text), **headers)

    @asynccontextmanager
    async def stream(self, text: str, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        asking = self._session.post(
            f"{self._url}/v1/chat/completions", json=turn(text, stream=True), headers=named
        )
        async with asking as answer:
            assert answer.status == 200, await answer.text()
            yield answer

    async def follow(self, text: str, followed: Followed | None = None, **headers: str) -> Followed:
        """To its end."""
        so_far = followed or Followed()
        async with self.stream(text, **headers) as answer:
            rest = ""
            async for piece in answer.content.iter_any():
                *frames, rest = (rest + piece.decode()).split("\n\n")
                so_far.frames += [one.removeprefix("data: ") for one in frames if one.startswith("data: ")]
                so_far.comments += sum(one.startswith(":") for one in frames)
            assert rest == ""
            so_far.is_whole = True
        return so_far


@asynccontextmanager
async def wire_to(server: LiveServer, *, connections: int = 0) -> AsyncIterator[Wire]:
    timeout = aiohttp.ClientTimeout(total=3 * SECONDS)
    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        yield Wire(session, server.url)


async def until(what: Any) -> None:
    """Until it is true; it may be asked of the server."""
    async with asyncio.timeout(SECONDS):
        while not await what():
            await asyncio.sleep(0.01)
