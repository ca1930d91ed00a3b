"""`lastgood bench`: what a turn costs on this machine, beside the least that it could cost.

Times on a shared machine say little; ratios within one run say more. The floor of a turn is two durable
transactions of SQLite (begin and commit), made by a bare loop. That of the first token is one of these
(a turn begins durably) and a request to /health. Callers that come together share a flush of the disk, and
a bare loop cannot: on a slow disk the server makes more turns than that.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lastgood.cli.demo_process import DemoProcess
from lastgood.cli.output import print_json, print_line
from lastgood.cli.parser import CommandParser, configure_command
from lastgood.errors import StoreUnavailable

if TYPE_CHECKING:
    import aiohttp

_START_SECONDS = 60.0
_STREAMED = 50
_MESSAGE = "What is the capital of the country in which this sentence was written down first?"


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, and CPU seconds of the server. Floors are of the same run."""

    turns: int
    callers: int
    turns_per_second: float
    floor_turns_per_second: float
    cpu_per_turn: float
    floor_cpu_per_turn: float
    first_token: float
    floor_first_token: float
    start: float


def configure(parser: CommandParser) -> None:
    configure_command(
        parser,
        run_bench,
        json="print one JSON object",
        details="Starts a server in a temporary directory, with SQLite and the offline scripted model, and "
        "sends it turns of stored conversations. Each figure is printed with its ratio to a floor that is "
        "measured in the same run. Needs no network and no API key.",
    )
    parser.add_argument(
        "--turns", metavar="N", type=_positive, default=400, help="turns to send; default: 400"
    )
    parser.add_argument(
        "--callers", metavar="N", type=_positive, default=16, help="turns at the same time; default: 16"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 100_000:
        raise argparse.ArgumentTypeError("must be an integer from 1 to 100000")
    return int(text)


def run_bench(args: argparse.Namespace) -> int:
    # Not in the data directory: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="lastgood-bench-", ignore_cleanup_errors=True) as folder:
        for name in ("idle", "busy"):
            Path(folder, name).mkdir()
        figures = asyncio.run(_measure(Path(folder), args.turns, args.callers))
    if args.json:
        print_json(asdict(figures))
    else:
        _print(figures)
    return 0


def _print(found: Figures) -> None:
    ratio = found.turns_per_second / found.floor_turns_per_second
    cpu, first = found.cpu_per_turn * 1e3, found.first_token * 1e3
    cpu_floor, first_floor = found.floor_cpu_per_turn * 1e3, found.floor_first_token * 1e3
    print_line(
        f"{found.turns} turns of stored conversations, {found.callers} at a time, scripted model, SQLite"
    )
    print_line(
        f"turns/s       {found.turns_per_second:8.0f}     two bare durable transactions: "
        f"{found.floor_turns_per_second:,.0f}/s; {ratio:.2f} times as many"
    )
    print_line(
        f"CPU per turn  {cpu:8.2f} ms  two bare durable transactions: {cpu_floor:.2f} ms; "
        f"{cpu / max(cpu_floor, 1e-6):.1f} times the floor"
    )
    print_line(
        f"first token   {first:8.2f} ms  one bare transaction and GET /health: {first_floor:.2f} ms; "
        f"{first / first_floor:.1f} times the floor"
    )
    print_line(f"start         {found.start:8.2f} s")


async def _measure(folder: Path, turns: int, callers: int) -> Figures:
    before = _child_cpu()
    async with _server(folder / "idle") as (_, started):
        pass
    idle = _child_cpu() - before
    async with _server(folder / "busy") as (http, _):
        await _turn(http, "warm")
        began = time.perf_counter()
        left = iter(range(turns))
        await asyncio.gather(*(_caller(http, f"caller{number}", left) for number in range(callers)))
        seconds = time.perf_counter() - began
        firsts = [await _first_token(http, "streamed") for _ in range(_STREAMED)]
        pings = [await _health(http) for _ in range(_STREAMED)]
    cpu = _child_cpu() - before - 2 * idle
    floor_seconds, floor_cpu = _bare_turns(folder / "floor.db", turns)
    return Figures(
        turns=turns,
        callers=callers,
        turns_per_second=turns / seconds,
        floor_turns_per_second=turns / floor_seconds,
        cpu_per_turn=max(cpu, 0.0) / (turns + _STREAMED + 1),
        floor_cpu_per_turn=floor_cpu / turns,
        first_token=statistics.median(firsts),
        floor_first_token=statistics.median(pings) + floor_seconds / turns / 2,
        start=started,
    )


def _child_cpu() -> float:
    """Of the servers that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -- the server ------------------------------------------------------------------------


@asynccontextmanager
async def _server(folder: Path) -> AsyncIterator[tuple[aiohttp.ClientSession, float]]:
    """A process of its own and a client of it, and how long it took to start."""
    import aiohttp

    socket, process = folder / "bench.sock", DemoProcess(folder / "server.log")
    began = time.perf_counter()
    words = ("serve", "builtin/scripted", "--listen", f"unix://{socket}")
    await process.start(words, {"LASTGOOD_DATA_DIR": str(folder)})
    try:
        async with aiohttp.ClientSession(
            "http://localhost", connector=aiohttp.UnixConnector(str(socket), limit=0)
        ) as http:
            async with asyncio.timeout(_START_SECONDS):
                while not await _is_ready(http):
                    if process.has_exited:
                        raise StoreUnavailable(f"the server did not start: {process.last_words}")
                    await asyncio.sleep(0.01)
            yield http, time.perf_counter() - began
    finally:
        await process.end(signal.SIGTERM)


async def _is_ready(http: aiohttp.ClientSession) -> bool:
    import aiohttp

    try:
        async with http.get("/ready") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def _caller(http: aiohttp.ClientSession, conversation: str, left: Any) -> None:
    for _ in left:
        await _turn(http, conversation)


def _body(*, stream: bool) -> dict[str, Any]:
    said = [{"role": "user", "content": _MESSAGE}]
    return {"model": "builtin/scripted", "messages": said, "stream": stream}


async def _turn(http: aiohttp.ClientSession, conversation: str) -> None:
    headers = {"x-conversation-id": conversation}
    async with http.post("/v1/chat/completions", json=_body(stream=False), headers=headers) as answer:
        text = await answer.text()
        if answer.status != 200:
            raise StoreUnavailable(f"a turn failed with status {answer.status}: {text}")


async def _first_token(http: aiohttp.ClientSession, conversation: str) -> float:
    headers = {"x-conversation-id": conversation}
    began, first = time.perf_counter(), 0.0
    async with http.post("/v1/chat/completions", json=_body(stream=True), headers=headers) as answer:
        async for line in answer.content:
            if not first and b'"content":"' in line and b'"content":""' not in line:
                first = time.perf_counter() - began
    if not first:
        raise StoreUnavailable(f"a streamed turn had no text (status {answer.status})")
    return first


async def _health(http: aiohttp.ClientSession) -> float:
    began = time.perf_counter()
    async with http.get("/health") as answer:
        await answer.read()
    return time.perf_counter() - began


# -- the floor -------------------------------------------------------------------------


def _bare_turns(path: Path, turns: int) -> tuple[float, float]:
    """Seconds and CPU seconds of two durable transactions per turn, each with a row of a usual size."""
    import apsw

    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full")
    connection.execute("CREATE TABLE rows (n INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(2 * turns):
        connection.execute("INSERT INTO rows (body) VALUES (zeroblob(1000))")
    done = time.perf_counter() - began, time.process_time() - cpu
    connection.close()
    return done
