"""Claims under load on PostgreSQL: 10,000 queued tasks, 100,000 finished ones, eight workers at once.

Checked: no task is claimed twice, every task is claimed, agents take turns however many tasks each has
queued, and the oldest task of the lowest priority is not starved. Each task is completed, too.

    python -m tests.bench.claims [--tasks N] [--finished N] [--claimers N]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import asyncpg

from lastgood.model.attempts import Committed
from lastgood.model.tasks import Task, TaskStatus
from lastgood.ports import Store
from lastgood.store.postgres import open_postgres
from tests.contract import builders, work_builders
from tests.postgres import PostgresServer

AGENTS = 5
#: The first agent has queued this share of all tasks, before the others.
GREEDY = 0.6
AT_ONCE = 4
RUNTIME = "rt"
AGEING_SECONDS = 600.0
#: What a claim may cost with all tasks queued. The quickest one counts: other load of the machine only adds.
TARGET_MS = 10.0


@dataclass
class Run:
    claimed: list[Task] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    lost: int = 0


async def fill(store: Store, outside: asyncpg.Connection[asyncpg.Record], tasks: int, finished: int) -> Task:
    """Returns the oldest one, of the lowest priority."""
    await work_builders.register(store, RUNTIME)

    async def add(agent: int, priority: int = 5) -> Task:
        session = await builders.session(store, agent_key=f"agent{agent}")
        return await work_builders.task(store, session, runtime=RUNTIME, priority=priority)

    greedy = int(tasks * GREEDY)
    others = [1 + number % (AGENTS - 1) for number in range(tasks - greedy - 1)]
    for group in ([0] * greedy, others):
        for start in range(0, len(group), 200):
            await asyncio.gather(*map(add, group[start : start + 200]))
    oldest = await add(0, priority=0)
    await outside.execute(
        "UPDATE tasks SET created_at = created_at - $1 WHERE id = $2", 6.5 * AGEING_SECONDS, oldest.id
    )
    columns = (
        "tenant, agent_key, scope_kind, scope_id, runtime_id, created_by, end_user, deadline_seconds, "
        "created_at"
    )
    await outside.execute(
        f"INSERT INTO tasks (id, session_id, turn_id, status, ended_at, {columns}) "
        f"SELECT 'done' || i, session_id, 'done' || i, 'completed', 1, {columns} "
        "FROM generate_series(1, $1::bigint) AS i, (SELECT * FROM tasks LIMIT 1) AS one",
        finished,
    )
    await outside.execute("ANALYZE")
    return oldest


async def claimer(store: Store, run: Run) -> None:
    while True:
        began = time.perf_counter()
        claims = await work_builders.claim_some(store, RUNTIME, wanted=AT_ONCE, ageing_seconds=AGEING_SECONDS)
        run.seconds.append(time.perf_counter() - began)
        if not claims:
            return
        run.claimed += [each.claimed.task for each in claims]
        for each in claims:
            run.lost += await each.complete(store) is not Committed.YES


def problems(run: Run, oldest: Task, tasks: int, claimers: int) -> list[str]:
    found = []
    ids = [task.id for task in run.claimed]
    if len(set(ids)) != len(ids):
        found.append(f"{len(ids) - len(set(ids))} tasks were claimed twice")
    if len(set(ids)) != tasks:
        found.append(f"{tasks - len(set(ids))} tasks were never claimed")
    if run.lost:
        found.append(f"{run.lost} completions were refused")
    first = Counter(task.agent_key for task in run.claimed[: tasks // 10])
    fair = tasks // 10 / AGENTS
    for agent in range(AGENTS):
        if abs(first[f"agent{agent}"] - fair) > 0.2 * fair:
            found.append(f"of the first {tasks // 10} claims, agent{agent} had {first[f'agent{agent}']}")
    if oldest.id not in ids[: 2 * claimers * AT_ONCE]:
        found.append(f"the oldest task was claimed as number {ids.index(oldest.id) + 1}")
    return found


async def measure(dsn: str, tasks: int, finished: int, claimers: int) -> bool:
    store = await open_postgres(dsn, pool_size=2 * claimers)
    outside = await asyncpg.connect(dsn)
    began = time.perf_counter()
    oldest = await fill(store, outside, tasks, finished)
    print(
        f"filled in {time.perf_counter() - began:.0f} s: {tasks:,} queued tasks, {finished:,} finished ones"
    )
    began = time.perf_counter()
    alone = []
    for _ in range(15):
        start = time.perf_counter()
        claims = await work_builders.claim_some(store, RUNTIME, wanted=1, ageing_seconds=AGEING_SECONDS)
        alone.append((time.perf_counter() - start) * 1e3)
        assert await claims[0].fail(store, TaskStatus.QUEUED)
    print(
        f"one claim, alone, all tasks queued: {min(alone):.1f} ms at best, "
        f"median {statistics.median(alone):.1f} ms"
    )
    run, began = Run(), time.perf_counter()
    await asyncio.gather(*(claimer(store, run) for _ in range(claimers)))
    took = time.perf_counter() - began
    await outside.close()
    await store.close()
    print(
        f"{len(run.claimed):,} tasks claimed and completed by {claimers} workers in {took:.0f} s "
        f"({len(run.claimed) / took:.0f}/s); {len(run.seconds):,} claims of up to {AT_ONCE}: median "
        f"{statistics.median(run.seconds) * 1e3:.0f} ms, worst {max(run.seconds) * 1e3:.0f} ms"
    )
    found = problems(run, oldest, tasks, claimers)
    if min(alone) > TARGET_MS:
        found.append(f"a claim costs {min(alone):.0f} ms (target {TARGET_MS:.0f} or less)")
    print("\n".join(found) if found else "no double claim, nothing lost, agents took turns, nobody starved")
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--finished", type=int, default=100_000)
    parser.add_argument("--claimers", type=int, default=8)
    options = parser.parse_args()
    with PostgresServer() as server:
        server.create_database("claims")
        good = asyncio.run(measure(server.dsn("claims"), options.tasks, options.finished, options.claimers))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
