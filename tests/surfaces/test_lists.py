"""A page of the list costs what is on it: not how long the histories are, nor how many sessions there are.

Work is counted, not timed: which tables SQLite reads, and how many steps it takes. `make bench` times it,
with 10,000 sessions of 200 turns each.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

from lastgood.model.ids import DEFAULT_TENANT
from lastgood.store.session_rows import of_list
from lastgood.store.sqlite import SqliteStore
from lastgood.store.statements import named
from tests.bench.session_lists import ASKS, PAGE, SESSIONS, fill
from tests.surfaces.in_process_server import InProcessServer, open_inside

pytestmark = pytest.mark.anyio

FEW = 200


@dataclass
class Work:
    tables: set[str]
    steps: int


@asynccontextmanager
async def served(folder: Path, sessions: int, turns: int) -> AsyncIterator[InProcessServer]:
    """Without what a server does beside: that would be counted, too."""
    await asyncio.to_thread(folder.mkdir)
    await asyncio.to_thread(fill, folder / "lastgood.db", sessions, turns)
    async with open_inside(folder) as inside:
        assert inside.server._running is not None
        await inside.server._running.aclose()
        yield inside


async def work_of(inside: InProcessServer, more: str) -> Work:
    """What SQLite does for one page, asked for as a client does."""
    store = inside.server.lastgood.deps.store
    assert isinstance(store, SqliteStore)
    reader, work = store.db._reader, Work(set(), 0)

    def reads(action: int, table: str | None, *_: object) -> int:
        if action == apsw.SQLITE_READ and table is not None:
            work.tables.add(table)
        return apsw.SQLITE_OK

    def steps() -> bool:
        work.steps += 1
        return False

    reader.set_authorizer(reads)
    reader.set_progress_handler(steps, 1)
    try:
        page = await inside.good("GET", f"/api/sessions?limit={PAGE}{more}")
        assert len(page) <= PAGE
    finally:
        reader.set_authorizer(None)
        reader.set_progress_handler(None)
    return work


#: Those that find their page without looking for it.
AT_ONCE = ("the first page", "q, nearly all match", "a common agent", "status=idle")


async def test_a_page_reads_sessions_and_their_open_tasks_and_nothing_else(tmp_path: Path) -> None:
    """An open task tells a session that is queued from one that is idle."""
    async with served(tmp_path / "data", FEW, 5) as inside:
        for name, more in ASKS.items():
            assert (await work_of(inside, more)).tables == {"sessions", "tasks"}, name


async def test_a_page_costs_the_same_however_long_the_histories_are(tmp_path: Path) -> None:
    costs = []
    for turns in (1, 50):
        async with served(tmp_path / str(turns), FEW, turns) as inside:
            costs.append({name: (await work_of(inside, more)).steps for name, more in ASKS.items()})
    assert costs[0] == costs[1]


async def test_a_page_costs_the_same_wherever_it_is_and_however_many_there_are(tmp_path: Path) -> None:
    async with served(tmp_path / "few", FEW, 1) as few, served(tmp_path / "many", 20 * FEW, 1) as many:
        first = (await work_of(many, "")).steps
        assert first < 100 * PAGE
        for cursor in (20 * FEW, 10 * FEW, FEW, PAGE + 1):
            assert (await work_of(many, f"&cursor={cursor}")).steps <= first, cursor
        for name in AT_ONCE:
            steps = {(await work_of(inside, ASKS[name])).steps for inside in (few, many)}
            assert len(steps) == 1, name
        # What has to look for its page looks at each session once.
        looked = (await work_of(many, ASKS["q, one matches"])).steps
        assert looked < 30 * 20 * FEW


@pytest.mark.parametrize("cursor", [None, SESSIONS // 2])
def test_a_page_is_found_by_the_index(tmp_path: Path, cursor: int | None) -> None:
    path = tmp_path / "lastgood.db"
    fill(path, FEW, 1)
    connection = apsw.Connection(str(path))
    parameters = of_list(DEFAULT_TENANT, PAGE, cursor, "needle", "rare", None)
    plan = [
        row[3]
        for row in connection.execute("EXPLAIN QUERY PLAN " + named("sqlite")["list_sessions"], parameters)
    ]
    connection.close()
    # No sorting beside it, and of tasks only the first unfinished one of each session with a runtime.
    assert plan[0].startswith("SEARCH sessions USING INDEX sessions_by_tenant (tenant=? AND n<?)")
    beside = [step for step in plan[1:] if not step.startswith("CORRELATED SCALAR SUBQUERY")]
    assert {step.partition(" (")[0] for step in beside} == {"SEARCH tasks USING INDEX tasks_unfinished"}, plan
