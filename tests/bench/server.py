"""What a served turn costs, beside a floor: raw ASGI in, one model call out, the same two durable writes.

Four processes on loopback: a model that streams, the real server, the floor, and this one, which
is the sixteen clients. Measured are the CPU time of the two servers and the time until a
client has the first word, in rounds that alternate between them.

With another checkout beside it, its server is a third one in the same rounds: times of two runs on a
shared machine cannot be compared, ratios within one round can.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import apsw
import orjson
import psutil
import uvicorn

CLIENTS = 16
TARGET = 2.0
AGENT = """
providers:
  bench:
    base_url: %s
agents:
  root:
    model: bench/bench
    description: answers
    instruction: Answer.
"""


# -- the floor -------------------------------------------------------------------------


class Floor:
    """Keeps nothing, checks nothing: a begin and a commit in SQLite, and a model's words passed on."""

    def __init__(self, model: str, path: Path) -> None:
        self._model = model
        self._session: aiohttp.ClientSession | None = None
        self._writer = ThreadPoolExecutor(1)
        self._db = apsw.Connection(str(path))
        for statement in (
            "PRAGMA journal_mode=wal",
            "PRAGMA synchronous=full",
            "CREATE TABLE attempts (id INTEGER PRIMARY KEY, body BLOB)",
            "CREATE TABLE turns (id INTEGER PRIMARY KEY, body BLOB)",
        ):
            self._db.execute(statement).fetchall()

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = bool(message.get("more_body"))
        asked = orjson.loads(body)
        await self._write("INSERT INTO attempts (body) VALUES (?)", body)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        text = []
        question = orjson.dumps({"model": "bench", "messages": asked["messages"], "stream": True})
        async with self._session.post(
            f"{self._model}/chat/completions", data=question, headers={"Content-Type": "application/json"}
        ) as answer:
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                delta = orjson.loads(line[6:])["choices"][0]["delta"]
                if "content" in delta:
                    text.append(delta["content"])
                    chunk = orjson.dumps({"choices": [{"index": 0, "delta": delta}]})
                    piece = b"data: " + chunk + b"\n\n"
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._write("INSERT INTO turns (body) VALUES (?)", body + "".join(text).encode())
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    async def _write(self, statement: str, body: bytes) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, lambda: self._db.execute(statement, (body,)).fetchall())


# -- processes -------------------------------------------------------------------------


@contextmanager
def process(
    *line: str, env: dict[str, str] | None = None, checkout: Path | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A module of this checkout or, with its own .venv, of another one."""
    started = subprocess.Popen(
        [sys.executable if checkout is None else str(checkout / ".venv/bin/python"), "-m", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(env or {})},
        cwd=checkout,
    )
    try:
        yield started
    finally:
        started.terminate()
        started.communicate()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- clients ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_ms: float
    first_ms: float


async def measure(url: str, model: str, pid: int, turns: int, tag: str) -> Cost:
    """The second turn of so many conversations."""
    names = [f"{tag}-{number}" for number in range(turns)]
    await ask_all(url, model, names)
    server = psutil.Process(pid)
    before = server.cpu_times()
    first = await ask_all(url, model, names)
    after = server.cpu_times()
    cpu = (after.user + after.system) - (before.user + before.system)
    return Cost(cpu * 1e3 / turns, statistics.median(first) * 1e3)


async def ask_all(url: str, model: str, names: list[str]) -> list[float]:
    """One question in each conversation, by so many clients at once; how long each waited for a word."""
    first: list[float] = []
    left = iter(names)

    async def client(session: aiohttp.ClientSession) -> None:
        body = {"model": model, "messages": [{"role": "user", "content": "hello there"}], "stream": True}
        for name in left:
            asked = time.perf_counter()
            received = False
            async with session.post(
                f"{url}/chat/completions", json=body, headers={"X-Conversation-Id": name}
            ) as answer:
                async for line in answer.content:
                    if not received and b"word" in line:
                        first.append(time.perf_counter() - asked)
                        received = True
            assert received, answer.status

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return first


async def _until_up(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(200):
            try:
                async with session.get(url):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)
    raise RuntimeError(f"{url} did not come up")


async def compare(servers: list[tuple[str, int]], rounds: int, turns: int) -> list[list[Cost]]:
    """Of each round what each server costs, one right after the other; the first round warms up."""
    return [
        [
            await measure(url, "agent", pid, turns, f"{number}-{place}")
            for place, (url, pid) in enumerate(servers)
        ]
        for number in range(rounds + 1)
    ][1:]


def _ratio(found: list[list[Cost]], what: str, over: int) -> tuple[float, float, float]:
    """Within a round, since the machine is another one a minute later: the middle one, least and most."""
    ratios = sorted(getattr(costs[0], what) / getattr(costs[over], what) for costs in found)
    return statistics.median(ratios), ratios[0], ratios[-1]


def server_cost(rounds: int = 7, turns: int = 320, against: Path | None = None) -> float:
    """Prints what a served turn costs; returns how many times the floor's CPU that is."""
    labels = ["lastgood", "floor"] if against is None else ["lastgood", "floor", "against"]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        model = stack.enter_context(process("tests.bench.loop", "words"))
        assert model.stdout is not None
        model_url = f"http://127.0.0.1:{int(model.stdout.readline())}/v1"
        (folder / "agent.yaml").write_text(AGENT % model_url)
        servers = [
            stack.enter_context(_served(folder, "lastgood", None)),
            stack.enter_context(_floor(folder, model_url)),
        ]
        if against is not None:
            servers.append(stack.enter_context(_served(folder, "against", against.absolute())))

        async def run() -> list[list[Cost]]:
            for url, _ in servers:
                await _until_up(url)
            return await compare([(f"{url}/v1", pid) for url, pid in servers], rounds, turns)

        found = asyncio.run(run())
    print(
        f"a served turn, {CLIENTS} clients, streamed, SQLite, history 1; the middle one of {rounds} rounds:"
    )
    for label, costs in zip(labels, zip(*found, strict=True), strict=True):
        cpu = statistics.median(cost.cpu_ms for cost in costs)
        first = statistics.median(cost.first_ms for cost in costs)
        print(f"  {label:9} {cpu:6.2f} ms CPU a turn   first word after {first:6.1f} ms")
    for over, label in enumerate(labels[1:], start=1):
        target = f" (target {TARGET:.2f} or less)" if label == "floor" else ""
        for title, what in (("CPU", "cpu_ms"), ("first word", "first_ms")):
            middle, least, most = _ratio(found, what, over)
            print(f"  {title:10} {middle:.2f} x {label}, {least:.2f} to {most:.2f}{target}")
    return _ratio(found, "cpu_ms", 1)[0]


@contextmanager
def _served(folder: Path, name: str, checkout: Path | None) -> Iterator[tuple[str, int]]:
    port = _free_port()
    line = ("lastgood", "serve", str(folder / "agent.yaml"), "--listen", f"127.0.0.1:{port}")
    with process(*line, env={"LASTGOOD_DATA_DIR": str(folder / name)}, checkout=checkout) as server:
        yield f"http://127.0.0.1:{port}", server.pid


@contextmanager
def _floor(folder: Path, model_url: str) -> Iterator[tuple[str, int]]:
    port = _free_port()
    with process("tests.bench.server", str(port), model_url, str(folder / "floor.db")) as server:
        yield f"http://127.0.0.1:{port}", server.pid


def _serve_floor(port: str, model: str, path: str) -> None:
    uvicorn.run(
        Floor(model, Path(path)), host="127.0.0.1", port=int(port), http="httptools", loop="uvloop",
        lifespan="off", access_log=False, log_config=None,
    )  # fmt: skip


if __name__ == "__main__":
    _serve_floor(*sys.argv[1:])
