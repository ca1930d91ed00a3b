"""What a served turn costs, beside a floor: raw ASGI in, one model call out, the same two durable writes.

Four processes on loopback: a model that streams, the real server, the floor, and this one, which
is the sixteen clients. Measured are the CPU time of the two servers and the time until a
client has the first word, in rounds that alternate between them.
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
from contextlib import contextmanager
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
def process(*line: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-m", *line],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(env or {})},
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
            told = False
            async with session.post(
                f"{url}/chat/completions", json=body, headers={"X-Conversation-Id": name}
            ) as answer:
                async for line in answer.content:
                    if not told and b"word" in line:
                        first.append(time.perf_counter() - asked)
                        told = True
            assert told, answer.status

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


async def compare(
    ours: tuple[str, int], floor: tuple[str, int], rounds: int, turns: int
) -> list[tuple[Cost, Cost]]:
    """Of each round what both cost, one right after the other; the first round warms up."""
    found: list[tuple[Cost, Cost]] = []
    for number in range(rounds + 1):
        found.append(
            (
                await measure(ours[0], "agent", ours[1], turns, f"o{number}"),
                await measure(floor[0], "agent", floor[1], turns, f"f{number}"),
            )
        )
    return found[1:]


def _ratio(found: list[tuple[Cost, Cost]], what: str) -> tuple[float, float, float]:
    """Within a round, since the machine is another one a minute later: the middle one, least and most."""
    ratios = sorted(getattr(ours, what) / getattr(floor, what) for ours, floor in found)
    return statistics.median(ratios), ratios[0], ratios[-1]


def server_cost(rounds: int = 7, turns: int = 320) -> float:
    """Prints what a served turn costs; returns how many times the floor's CPU that is."""
    with tempfile.TemporaryDirectory() as name, process("tests.bench.loop", "words") as model:
        folder = Path(name)
        assert model.stdout is not None
        model_url = f"http://127.0.0.1:{int(model.stdout.readline())}/v1"
        (folder / "agent.yaml").write_text(AGENT % model_url)
        port, floor_port = _free_port(), _free_port()
        env = {"LASTGOOD_DATA_DIR": str(folder / "data")}
        with (
            process(
                "lastgood", "serve", str(folder / "agent.yaml"), "--listen", f"127.0.0.1:{port}", env=env
            ) as server,
            process("tests.bench.server", str(floor_port), model_url, str(folder / "floor.db")) as floor,
        ):
            urls = (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{floor_port}")

            async def run() -> list[tuple[Cost, Cost]]:
                await _until_up(f"{urls[0]}/ready")
                await _until_up(f"{urls[1]}/")
                return await compare(
                    (f"{urls[0]}/v1", server.pid), (f"{urls[1]}/v1", floor.pid), rounds, turns
                )

            found = asyncio.run(run())
    print(
        f"a served turn, {CLIENTS} clients, streamed, SQLite, history 1; the middle one of {rounds} rounds:"
    )
    for label, costs in zip(("lastgood", "floor"), zip(*found, strict=True), strict=True):
        cpu = statistics.median(cost.cpu_ms for cost in costs)
        first = statistics.median(cost.first_ms for cost in costs)
        print(f"  {label:9} {cpu:6.2f} ms CPU a turn   first word after {first:6.1f} ms")
    for label, what in (("CPU", "cpu_ms"), ("first word", "first_ms")):
        middle, least, most = _ratio(found, what)
        print(
            f"  {label:10} {middle:.2f} x the floor, {least:.2f} to {most:.2f} (target {TARGET:.2f} or less)"
        )
    return _ratio(found, "cpu_ms")[0]


def _serve_floor(port: str, model: str, path: str) -> None:
    uvicorn.run(
        Floor(model, Path(path)), host="127.0.0.1", port=int(port), http="httptools", loop="uvloop",
        lifespan="off", access_log=False, log_config=None,
    )  # fmt: skip


if __name__ == "__main__":
    _serve_floor(*sys.argv[1:])
