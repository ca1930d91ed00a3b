"""`make prove`: shows the promise, with figures. A defect must be caught before a figure counts.

Prints what was planted and what caught it, the fault cells on both stores, seeded
simulations, and real kill -9 of working processes. Ends with 1 if anything was
missed or broken. Every line names the seeds that repeat it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.cells import RECOVERY_POINTS, TURNS, cells, count_hits, run_any, run_recovery_killed
from tests.faults.defects import DEFECTS, caught_by_probe, caught_by_simulation
from tests.faults.kills import rounds
from tests.faults.probes import PROBES
from tests.faults.simulation import Weather, simulate
from tests.faults.stores import Places
from tests.postgres import PostgresServer

KILLS_PER_DATABASE = 25


def say(text: str) -> None:
    print(text, flush=True)


def bound(runs: int) -> str:
    """What 0 of n means."""
    return f"below {3 / runs:.2%} at 95 % confidence" if runs else "nothing was run"


def defects(options: argparse.Namespace, _: PostgresServer) -> bool:
    caught = 0
    alone = 0
    for one in DEFECTS:
        by_probe = caught_by_probe(one)
        by_simulation = caught_by_simulation(one, options.defect_seeds)
        caught += by_probe is not None or by_simulation is not None
        alone += by_simulation is not None
        say(f"  {'caught' if by_probe or by_simulation else 'MISSED'}  {one.name}")
        for by in filter(None, (by_probe, by_simulation)):
            say(f"            {by[:150]}")
    say(
        f"planted defects: {caught} caught of {len(DEFECTS)} planted; "
        f"{alone} of them by the checker on seeded runs alone"
    )
    return caught == len(DEFECTS)


def probes(options: argparse.Namespace, _: PostgresServer) -> bool:
    objections = [f"{probe.name}: {objection}" for probe in PROBES if (objection := probe.objects())]
    say(f"probes: {len(PROBES)} run, {len(objections)} violations {objections or ''}")
    return not objections


def fault_cells(options: argparse.Namespace, server: PostgresServer) -> bool:
    good = True
    for kind in (None, server):
        run = broken = struck = 0
        with tempfile.TemporaryDirectory() as folder:
            places = Places(Path(folder), kind, shared=True)
            for turn in TURNS:
                for cell in cells(turn, asyncio.run(count_hits(places.new(), turn))):
                    found, hit = run_any(places.new(), cell, places.diary())
                    run, broken, struck = run + 1, broken + bool(found), struck + hit
                    if found:
                        say(f"  {places.kind}: {cell}: {found[0]}")
            for point in RECOVERY_POINTS:
                found, hit = run_recovery_killed(places.new(), point, places.diary())
                run, broken, struck = run + 1, broken + bool(found), struck + hit
                if found:
                    say(f"  {places.kind}: recovering, {point}: {found[0]}")
        say(f"fault cells on {places.kind}: {run} run, {struck} struck, {broken} violations")
        good = good and not broken
    return good


def simulations(options: argparse.Namespace, _: PostgresServer) -> bool:
    broken = 0
    first, last = options.seed, options.seed + options.simulations
    for seed in range(first, last):
        storm = Weather(fault=0.15, stall=0.03, deaths=3) if seed % 4 == 0 else None
        found = simulate(seed, storm)
        broken += bool(found)
        if found:
            say(f"  seed {seed}: {found[0]}")
    say(
        f"simulations: {last - first} run (seeds {first}-{last - 1}), {broken} with violations; "
        f"{bound(last - first)}"
    )
    return not broken


def kills(options: argparse.Namespace, server: PostgresServer) -> bool:
    good = True
    for kind, wanted in ((None, options.kills), (server, options.postgres_kills)):
        killed = acknowledged = lost = violations = 0
        seeds = range(options.seed, options.seed + -(-wanted // KILLS_PER_DATABASE))
        with tempfile.TemporaryDirectory() as folder:
            places = Places(Path(folder), kind)
            for seed in seeds:
                result = rounds(places.new(), places.diary(), seed, KILLS_PER_DATABASE)
                killed, acknowledged = killed + result.kills, acknowledged + result.acknowledged
                lost, violations = lost + result.lost, violations + result.violations
                for found in result.found or ():
                    say(f"  {places.kind}, seed {seed}: {found}")
        say(
            f"kill -9 on {places.kind}: {killed} processes killed (seeds {seeds[0]}-{seeds[-1]}), "
            f"{acknowledged} turns acknowledged, {lost} lost, {violations} violations; {bound(killed)}"
        )
        good = good and not violations
    return good


PARTS: dict[str, Callable[[argparse.Namespace, PostgresServer], bool]] = {
    "defects": defects,
    "probes": probes,
    "cells": fault_cells,
    "simulations": simulations,
    "kills": kills,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make prove", description=__doc__.splitlines()[0])
    parser.add_argument("--long", action="store_true", help="10,000 kills and 5,000 simulations")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--kills", type=int, help="processes to kill on SQLite")
    parser.add_argument("--simulations", type=int)
    options = parser.parse_args()
    options.kills = options.kills or (10_000 if options.long else 1_000)
    options.simulations = options.simulations or (5_000 if options.long else 300)
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
