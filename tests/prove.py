"""`make prove`: shows the promise, with figures. A defect must be caught before a figure counts.

Prints what was planted and what caught it, the fault cells on both stores, seeded
simulations, working processes that are ended by SIGKILL and SIGTERM, streams that are cut at random bytes,
a storm over two servers, workers that sleep or are cut off for longer than their lease, and eight workers
that claim 10,000 tasks. Ends with 1
if anything was missed or broken. Every line names the seeds that repeat it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.claims import measure
from tests.e2e.api import Api
from tests.e2e.cuts import CutScenario, Follower, objections, uncut
from tests.e2e.load import Log, judge, storm, under_load
from tests.e2e.neighbours import (
    REQUESTS,
    SILENCE_SECONDS,
    beside,
    neighbourhood,
    silence_without_neighbours,
)
from tests.e2e.nodes import two_nodes
from tests.e2e.runtime_faults import partition, sleep_cancel_and_move
from tests.e2e.server import LiveServer
from tests.e2e.task_server import TaskServer
from tests.faults.cells import RECOVERY_POINTS, TURNS, cells, count_hits, run_any, run_recovery_killed
from tests.faults.defects import caught_by_simulation
from tests.faults.kills import rounds
from tests.faults.outage import outages_of
from tests.faults.registry import ALL_DEFECTS, ALL_PROBES, caught_by_probe
from tests.faults.simulation import Weather, simulated
from tests.faults.stores import Places
from tests.postgres import PostgresServer

KILLS_PER_DATABASE = 25
CUTS_PER_STORY = 200
STORM_SECONDS = 60.0
#: Longer than the lease of a claim.
LEASE_SECONDS = 100.0
CLAIMING_WORKERS = 8


def say(text: str) -> None:
    print(text, flush=True)


def bound(runs: int) -> str:
    """What 0 of n means."""
    return f"below {3 / runs:.2%} at 95 % confidence" if runs else "nothing was run"


def defects(options: argparse.Namespace, _: PostgresServer) -> bool:
    caught = 0
    alone = 0
    for one in ALL_DEFECTS:
        by_probe = caught_by_probe(one)
        by_simulation = caught_by_simulation(one, options.defect_seeds)
        caught += by_probe is not None or by_simulation is not None
        alone += by_simulation is not None
        say(f"  {'caught' if by_probe or by_simulation else 'MISSED'}  {one.name}")
        for by in filter(None, (by_probe, by_simulation)):
            say(f"            {by[:150]}")
    say(
        f"planted defects: {caught} caught of {len(ALL_DEFECTS)} planted; "
        f"{alone} of them by the checker on seeded runs alone"
    )
    return caught == len(ALL_DEFECTS)


def probes(options: argparse.Namespace, _: PostgresServer) -> bool:
    objections = [f"{probe.name}: {objection}" for probe in ALL_PROBES if (objection := probe.objects())]
    say(f"probes: {len(ALL_PROBES)} run, {len(objections)} violations {objections or ''}")
    return not objections


def fault_cells(options: argparse.Namespace, server: PostgresServer) -> bool:
    good = True
    for kind in (None, server):
        run = broken = struck = 0
        with tempfile.TemporaryDirectory() as folder:
            places = Places(Path(folder), kind, shared=True)
            for turn in TURNS:
                for cell in cells(turn, asyncio.run(count_hits(places.new(), turn))):
                    found, hit = run_any(places.new(), cell, places.client_log())
                    run, broken, struck = run + 1, broken + bool(found), struck + hit
                    if found:
                        say(f"  {places.kind}: {cell}: {found[0]}")
            for point in RECOVERY_POINTS:
                found, hit = run_recovery_killed(places.new(), point, places.client_log())
                run, broken, struck = run + 1, broken + bool(found), struck + hit
                if found:
                    say(f"  {places.kind}: recovering, {point}: {found[0]}")
        say(f"fault cells on {places.kind}: {run} run, {struck} struck, {broken} violations")
        good = good and not broken
    return good


def simulations(options: argparse.Namespace, _: PostgresServer) -> bool:
    broken = acknowledged = edits = stops = 0
    first, last = options.seed, options.seed + options.simulations
    for seed in range(first, last):
        storm = Weather(fault=0.15, stall=0.03, deaths=3, stops=3) if seed % 4 == 0 else None
        result = simulated(seed, storm)
        broken += bool(result.found)
        acknowledged, edits = acknowledged + result.acknowledged, edits + result.edits
        stops += result.stops
        if result.found:
            say(f"  seed {seed}: {result.found[0]}")
    say(
        f"simulations: {last - first} run (seeds {first}-{last - 1}), {acknowledged} turns acknowledged, "
        f"{edits} of them edits, {stops} nodes stopped, {broken} with violations; {bound(last - first)}"
    )
    return not broken


def kills(options: argparse.Namespace, server: PostgresServer) -> bool:
    good = True
    for kind, wanted in ((None, options.kills), (server, options.postgres_kills)):
        endings: Counter[str] = Counter()
        away = 0
        acknowledged = edits = lost = violations = 0
        seeds = range(options.seed, options.seed + -(-wanted // KILLS_PER_DATABASE))
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            places = Places(Path(folder), kind)
            outages = stack.enter_context(outages_of(server.dsn("x"))) if kind is not None else None
            for seed in seeds:
                result = rounds(places.new(), places.client_log(), seed, KILLS_PER_DATABASE, outages=outages)
                away += result.outages
                endings.update(result.endings)
                acknowledged, edits = acknowledged + result.acknowledged, edits + result.edits
                lost, violations = lost + result.lost, violations + result.violations
                for found in result.found:
                    say(f"  {places.kind}, seed {seed}: {found}")
        say(
            f"kills on {places.kind}: {endings.total()} processes ended (seeds {seeds[0]}-{seeds[-1]}): "
            f"{', '.join(f'{count} by {ending}' for ending, count in endings.items())}; "
            f"{away} outages of the database; {acknowledged} turns acknowledged, {edits} of them edits, "
            f"{lost} lost, {violations} violations; {bound(endings.total())}"
        )
        good = good and not violations
    return good


def streams(options: argparse.Namespace, server: PostgresServer) -> bool:
    good = True
    stories = range(options.seed, options.seed + -(-options.cuts // CUTS_PER_STORY))
    for kind in ("sqlite", "postgres"):
        cuts = restarts = violations = 0
        with tempfile.TemporaryDirectory() as folder, _served(Path(folder), kind, server) as servers:
            caught = _notices_a_wrong_join(servers[0])
            say(f"  {'caught' if caught else 'MISSED'}  a reader that goes on with another event, on {kind}")
            for seed in stories:
                received = CutScenario(servers, seed, CUTS_PER_STORY, restarts=2).tell()
                cuts, restarts = cuts + received.cuts, restarts + received.restarts
                violations += len(received.found)
                for found in received.found:
                    say(f"  {kind}, seed {seed}: {found}")
        say(
            f"streams on {kind}: {cuts} cuts at random bytes (seeds {stories[0]}-{stories[-1]}), "
            f"{restarts} restarts, {violations} violations; {bound(cuts)}"
        )
        good = good and caught and not violations
    return good


@contextmanager
def _served(folder: Path, kind: str, server: PostgresServer) -> Iterator[Sequence[LiveServer]]:
    """One server on SQLite, or two on PostgreSQL."""
    little = ("--shutdown-grace", "1s")
    if kind == "sqlite":
        with LiveServer(folder, options=little) as one:
            yield [one]
    else:
        with two_nodes(folder, server, "streams", *little) as nodes:
            yield nodes.servers


def _notices_a_wrong_join(server: LiveServer) -> bool:
    session = Api(server).session(title="mine")
    for text in ("one", "two", "three"):
        Api(server).good(session, text)
    whole = uncut(server, session)
    joined = [Follower(session, skew=skew) for skew in (0, 1, -1)]
    for follower in joined:
        while follower.last < whole.last and len(follower.frames) < 2 * len(whole.frames):
            follower.read(server.port, most=1500, until=whole.last)
    return [bool(objections(follower, whole)) for follower in joined] == [False, True, True]


def nodes(options: argparse.Namespace, _: PostgresServer) -> bool:
    """With a database server of their own: it is restarted, too."""
    good = True
    for seed in range(options.seed, options.seed + options.storms):
        with (
            tempfile.TemporaryDirectory() as folder,
            PostgresServer() as server,
            outages_of(server.dsn("storm")) as outages,
            # The grace is shorter than some turns, so that a stop interrupts them.
            two_nodes(Path(folder), server, "storm", "--shutdown-grace", "0.1s", through=outages.dsn) as pair,
        ):
            log: Log = under_load(pair, seed, storm(pair, STORM_SECONDS, outages))
            found = judge(pair, log)
        for one in found:
            say(f"  storm, seed {seed}: {one}")
        say(
            f"storm over two nodes (seed {seed}): {log.acknowledged} turns acknowledged, {log.edits} of them "
            f"edits, {log.overtaken} edits overtaken, "
            f"{len(log.received)} requests, busy for {log.busiest:.0f} s at most, {len(found)} violations; "
            f"{bound(log.acknowledged)}"
        )
        good = good and not found
    return good


def neighbours(options: argparse.Namespace, server: PostgresServer) -> bool:
    """How long a running turn is silent beside another tenant's largest requests. Needs a quiet machine."""
    server.create_database("neighbours")
    good = [_neighbours_on(database) for database in (None, server.dsn("neighbours"))]
    return all(good)


def _neighbours_on(database: str | None) -> bool:
    with tempfile.TemporaryDirectory() as folder, neighbourhood(Path(folder) / "server", database) as apis:
        alone = silence_without_neighbours(apis[0])
        found = [beside(*apis, name) for name in REQUESTS]
    good = [one.is_short and one.committed > 0 and not one.failed for one in found]
    for one, is_good in zip(found, good, strict=True):
        say(f"  {'✓' if is_good else '✗'} {one}")
    longest = max(one.seconds for one in found)
    say(
        f"noisy neighbours on {'sqlite' if database is None else 'postgres'}: {sum(good)} of {len(found)} "
        f"requests cost the victim no turn and less than {SILENCE_SECONDS:.0f} s of silence; "
        f"the longest was {longest * 1000:.0f} ms, "
        f"and {alone * 1000:.0f} ms without a neighbour"
    )
    return all(good)


def _let_the_lease_end(_: TaskServer) -> None:
    time.sleep(LEASE_SECONDS)  # real time: a lease as it is


def runtimes(options: argparse.Namespace, _: PostgresServer) -> bool:
    """Leases of claims as they are, 90 s: the suite moves the clock of the database instead."""
    good = True
    for scenario in (sleep_cancel_and_move, partition):
        with tempfile.TemporaryDirectory() as folder:
            found = ""
            try:
                scenario(Path(folder), _let_the_lease_end)
            except AssertionError as error:
                found = str(error) or "an assertion failed"
        say(f"  {'MISSED' if found else 'kept'}  {scenario.__doc__} {found}")
        good = good and not found
    say(f"runtimes: a sleep and a partition of {LEASE_SECONDS:.0f} s, {'' if good else 'not '}survived")
    return good


def claims(options: argparse.Namespace, server: PostgresServer) -> bool:
    """Of workers on one PostgreSQL: none twice, all of them, and agents take turns."""
    server.create_database("claims")
    found, _ = asyncio.run(measure(server.dsn("claims"), options.tasks, 10 * options.tasks, CLAIMING_WORKERS))
    return not found


PARTS: dict[str, Callable[[argparse.Namespace, PostgresServer], bool]] = {
    "defects": defects,
    "probes": probes,
    "cells": fault_cells,
    "simulations": simulations,
    "kills": kills,
    "streams": streams,
    "nodes": nodes,
    "neighbours": neighbours,
    "runtimes": runtimes,
    "claims": claims,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make prove", description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="10,000 kills, 5,000 simulations, 10 storms")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--kills", type=int, help="processes to kill on SQLite")
    parser.add_argument("--simulations", type=int)
    parser.add_argument("--cuts", type=int, default=2_000, help="cuts of streams, on each store")
    parser.add_argument("--tasks", type=int, default=10_000, help="tasks to claim")
    parser.add_argument("--storms", type=int, help="minutes of storm over two nodes")
    options = parser.parse_args()
    options.kills = options.kills or (10_000 if options.long else 1_000)
    options.simulations = options.simulations or (5_000 if options.long else 300)
    options.storms = options.storms or (10 if options.long else 1)
    options.postgres_kills = options.kills // 10
    options.defect_seeds = 40
    logging.disable(logging.CRITICAL)
    good = True
    with PostgresServer() as server:
        for name, part in PARTS.items():
            if options.only in (None, name):
                started = time.perf_counter()
                good = part(options, server) and good
                say(f"    ({name}: {time.perf_counter() - started:.0f} s)")
    say("proved" if good else "BROKEN: see above")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
