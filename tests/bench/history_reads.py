"""What it costs to verify a history when it is read from the store, beside reading it unverified."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from lastgood.core.commit import plan_commit
from lastgood.core.history import History, history_of
from lastgood.flows.database_check import check_database
from lastgood.flows.history_cache import HistoryCache
from lastgood.model.attempts import Ask, Begin, Begun, Committed, Step, StepKind
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.messages import assistant, user
from lastgood.model.sessions import Head, NewSession
from lastgood.model.stored_rows import StoredTable
from lastgood.ports import Store
from lastgood.store.sqlite import open_sqlite
from lastgood.wiring import RandomIds

TURNS = 1000
REPEATS = 15
#: Characters of an answer: a chat, and the output of tools.
SIZES = (350, 10_000)


async def _talked(store: Store, size: int) -> Head:
    ids = RandomIds()
    session = await store.create_session(NewSession(ids.session(), DEFAULT_TENANT, "builtin/scripted"))
    assert session is not None
    for number in range(TURNS):
        await _turn(store, session.id, ids, f"question {number}", "word " * (size // 5))
    found = await store.get_session(DEFAULT_TENANT, session.id)
    assert found is not None
    assert found.head is not None
    return found.head


async def _turn(store: Store, session: SessionId, ids: RandomIds, said: str, answer: str) -> None:
    begin = Begin(
        Ask(DEFAULT_TENANT, session, (user(said),)), ids.turn(), ids.attempt(), "bench", 15.0,
        "builtin/scripted", "sha256:0", "builtin/scripted", {"agent": "exact"},
    )  # fmt: skip
    begun = await store.begin_if_free(begin, ())
    assert isinstance(begun, Begun)
    plan = plan_commit(begin, begun, [Step(StepKind.MODEL, assistant(answer))], time.time())
    assert (await store.commit_if_head(begun.hold, plan, ())).outcome is Committed.YES


async def _compare(folder: Path, size: int) -> tuple[float, float]:
    """Seconds of CPU for one read: unverified and verified, in turns, the medians."""
    store = open_sqlite(folder / f"{size}.db")
    head = await _talked(store, size)

    async def unverified() -> History:
        return history_of(await store.read_turns(DEFAULT_TENANT, head.turn))

    async def verified() -> History:
        return await HistoryCache(store).at(DEFAULT_TENANT, head)

    assert await unverified() == await verified()
    costs: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        for kept, read in zip(costs, (unverified, verified), strict=True):
            kept.append(await _cost(read))
    if size == SIZES[0]:
        began = time.perf_counter()
        report = await check_database(store)
        rows = sum(report.rows.values())
        assert report.is_good
        rate = rows / (time.perf_counter() - began)
        print(f"  db check: {rate:,.0f} rows/s ({report.rows[StoredTable.TURNS]} turns)")
    await store.close()
    return statistics.median(costs[0]), statistics.median(costs[1])


async def _cost(read: Callable[[], Awaitable[History]]) -> float:
    began = time.process_time()
    await read()
    return time.process_time() - began


def reading_cost() -> float:
    """The larger ratio of verified to unverified reads."""
    print(f"reading a history of {TURNS:,} turns from SQLite, CPU, median of {REPEATS}:")
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        for size in SIZES:
            plain, verified = asyncio.run(_compare(Path(name), size))
            ratios.append(verified / plain)
            print(
                f"  answers of {size:,} characters: {plain * 1e3:.1f} ms unverified, "
                f"{verified * 1e3:.1f} ms verified (ratio {ratios[-1]:.2f})"
            )
    return max(ratios)


if __name__ == "__main__":
    reading_cost()
