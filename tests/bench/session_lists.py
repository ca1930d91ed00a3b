"""What a page of a long list costs: 10,000 sessions of 200 turns each, fifty of them on a page.

The rows are written straight into SQLite, because two million turns through the API would
take hours. Measured are the CPU time and the memory of the real server, asked over a real socket:
the first page, pages deep in the list, and pages that a filter has to look for. The same sessions
with a single turn each are beside it: how long the histories are must not show.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import apsw
import psutil

from lastgood.store.sqlite import open_sqlite
from tests.bench.server import _free_port, _until_up, process

SESSIONS = 10_000
TURNS = 200
PAGE = 50
TARGET_MS = 10.0
#: What a server may grow by, while it is asked for every page of the list, however long the histories are.
TARGET_MB = 16.0

#: One session in a hundred has the rare agent; a single one has the needle, at the very end of the list.
ASKS = {
    "the first page": "",
    "a page in the middle": f"&cursor={SESSIONS // 2}",
    "the last page": f"&cursor={PAGE}",
    "q, nearly all match": "&q=session",
    "q, one matches": "&q=needle",
    "a common agent": "&agent=common",
    "a rare agent": "&agent=rare",
    "status=idle": "&status=idle",
    "status=running, none is": "&status=running",
}


def fill(path: Path, sessions: int, turns: int) -> None:
    """So many sessions of so many turns, in the tenant of a server without tokens."""
    asyncio.run(open_sqlite(path).close())
    connection = apsw.Connection(str(path))
    connection.pragma("synchronous", 0)
    connection.execute("BEGIN")
    connection.execute(
        """
        WITH RECURSIVE many (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM many WHERE i < :sessions)
        INSERT INTO sessions (n, id, tenant, agent_key, title, title_by, head, seq, head_hash, segment,
                              event_seq, input_tokens, output_tokens, created_at, updated_at)
        SELECT i, printf('ses_%08d', i), 'default', iif(i % 100, 'common', 'rare'),
               iif(i = 1, 'the needle', 'session number ' || i), 'us', printf('turn_%08d_%04d', i, :turns),
               :turns, zeroblob(32), printf('ses_%08d', i), 0, 100, 100, i, i
        FROM many
        """,
        {"sessions": sessions, "turns": turns},
    )
    connection.execute(
        """
        WITH RECURSIVE places (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM places WHERE seq < :turns)
        INSERT INTO turns (id, tenant, session_id, seq, segment, parent, attempt_id, kind, hash, agent_key,
                           agent_digest, model, decision, input_tokens, output_tokens, cost, created_at,
                           end_user, inputs, body)
        SELECT printf('turn_%08d_%04d', n, places.seq), tenant, id, places.seq, id,
               iif(places.seq > 1, printf('turn_%08d_%04d', n, places.seq - 1), NULL), 'att', 'run',
               zeroblob(32), agent_key, 'sha256:0', 'm', '{}', 1, 1, 0, 0, '', 1, :body
        FROM sessions, places ORDER BY n, places.seq
        """,
        {"turns": turns, "body": b'[{"role":"user","content":"hello"},{"role":"assistant","content":"hi"}]'},
    )
    connection.execute("COMMIT")
    connection.close()


@dataclass(frozen=True, slots=True)
class Listed:
    """CPU by what was asked for; what the server had before and after it was asked for every page."""

    cpu_ms: dict[str, float]
    before_mb: float
    after_mb: float


async def ask(url: str, pid: int, repeats: int) -> Listed:
    server = psutil.Process(pid)
    costs: dict[str, float] = {}
    async with aiohttp.ClientSession() as session:

        async def page(more: str) -> str | None:
            async with session.get(f"{url}/api/sessions?limit={PAGE}{more}") as answer:
                assert answer.status == 200, await answer.text()
                found = await answer.json()
                assert len(found) <= PAGE
                return answer.headers.get("x-next-cursor")

        for more in ASKS.values():
            await page(more)
        before = server.memory_info().rss
        for name, more in ASKS.items():
            start = _cpu(server)
            for _ in range(repeats):
                await page(more)
            costs[name] = (_cpu(server) - start) * 1e3 / repeats
        cursor = await page("")
        while cursor is not None:
            cursor = await page(f"&cursor={cursor}")
        return Listed(costs, before / 2**20, server.memory_info().rss / 2**20)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def _served(folder: Path) -> Iterator[tuple[str, int]]:
    port = _free_port()
    env = {"LASTGOOD_DATA_DIR": str(folder)}
    line = ("lastgood", "serve", "builtin/scripted", "--listen", f"127.0.0.1:{port}")
    with process(*line, env=env) as server:
        url = f"http://127.0.0.1:{port}"
        asyncio.run(_until_up(f"{url}/ready"))
        yield url, server.pid


def measure(sessions: int, turns: int, repeats: int) -> Listed:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fill(folder / "lastgood.db", sessions, turns)
        with _served(folder) as (url, pid):
            return asyncio.run(ask(url, pid, repeats))


def listing_cost(repeats: int = 100) -> bool:
    """Prints what pages cost, and whether they may."""
    began = time.perf_counter()
    short, long = measure(SESSIONS, 1, repeats), measure(SESSIONS, TURNS, repeats)
    print(
        f"a page of {PAGE} of {SESSIONS:,} sessions, CPU of the server, with 1 and with {TURNS} turns each:"
    )
    for name, cost in long.cpu_ms.items():
        print(f"  {name:24} {short.cpu_ms[name]:6.2f} ms   {cost:6.2f} ms")
    grown = long.after_mb - long.before_mb
    history = long.after_mb - short.after_mb
    print(
        f"  memory {long.before_mb:.0f} MB, {long.after_mb:.0f} MB after all pages ({grown:+.1f}); "
        f"with 1 turn each {short.after_mb:.0f} MB ({history:+.1f} for {TURNS} turns)"
    )
    worst = max(long.cpu_ms.values())
    good = worst <= TARGET_MS and max(grown, history) <= TARGET_MB
    print(
        f"  the dearest page costs {worst:.2f} ms (target {TARGET_MS:.0f} or less): "
        f"{'within' if good else 'NOT within'} target; took {time.perf_counter() - began:.0f} s in all"
    )
    return good


if __name__ == "__main__":
    raise SystemExit(0 if listing_cost() else 1)
