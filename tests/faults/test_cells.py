"""The fault matrix, on both stores."""

from __future__ import annotations

import asyncio
import itertools
import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.cells import (
    BY_THE_CLOCK,
    LIMITS,
    RECOVERY_POINTS,
    SWEPT,
    TURNS,
    Cell,
    cells,
    count_hits,
    run_any,
    run_recovery_killed,
)
from tests.faults.faults import Mode
from tests.faults.stores import Place, Places

pytestmark = pytest.mark.slow

_TRIES = 5
#: Stories side by side, each on a database of its own: most of a story is waiting for leases to end.
_LANES = 3


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def lanes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Places]:
    server = request.getfixturevalue("postgres_server") if request.param == "postgres" else None
    return [Places(tmp_path_factory.mktemp("cells"), server, shared=True) for _ in range(_LANES)]


@pytest.fixture(scope="module")
def places(lanes: list[Places]) -> Places:
    return lanes[0]


@pytest.fixture(scope="module", params=TURNS)
def matrix(request: pytest.FixtureRequest, places: Places) -> list[Cell]:
    return cells(request.param, asyncio.run(count_hits(places.new(), request.param)))


@pytest.mark.parametrize("mode", Mode)
def test_no_fault_at_any_point_breaks_a_session(lanes: list[Places], matrix: list[Cell], mode: Mode) -> None:
    """I1–I20 under {raise, lost answer, lost call, cancel, stall, kill -9} × {first, second, last hit}."""
    chosen = [cell for cell in matrix if cell.mode is mode]
    assert chosen
    missed = chosen
    # On a busy machine a lease may end before its point is reached: the next try has a longer one.
    for number in range(_TRIES):
        missed = _missed(lanes, missed, LIMITS.lease_seconds * 2**number)
    sure = [cell for cell in missed if cell.hit == 1 or cell.point not in BY_THE_CLOCK | SWEPT]
    assert sure == []


def _missed(lanes: list[Places], cells: list[Cell], lease: float) -> list[Cell]:
    """Those at whose point nothing happened."""
    if any(cell.mode is Mode.KILL for cell in cells):
        lanes = lanes[:1]  # they fork, which a process with threads must not
    free, missed = queue.SimpleQueue[Places](), []
    for lane in lanes:
        free.put(lane)

    def run(cell: Cell) -> None:
        lane = free.get()
        try:
            if not _strikes(lane, cell, lease):
                missed.append(cell)
        finally:
            free.put(lane)

    if len(lanes) == 1:
        for cell in cells:
            run(cell)
    else:
        with ThreadPoolExecutor(len(lanes)) as pool:
            list(pool.map(run, cells))
    return missed


def _strikes(places: Places, cell: Cell, lease: float) -> bool:
    found, struck = run_any(places.new(), cell, places.client_log(), lease)
    assert found == [], str(cell)
    return struck


def test_dying_while_recovering_changes_nothing(places: Places) -> None:
    """I19."""
    struck = [_dies_recovering(places.new(), point, places.client_log()) for point in RECOVERY_POINTS]
    # One of the two ways to find the dead is not used by this kind of store.
    assert sum(struck) >= len(RECOVERY_POINTS) - 1


def _dies_recovering(place: Place, point: str, client_log: Path) -> bool:
    found, struck = run_recovery_killed(place, point, client_log)
    assert found == [], point
    return struck


def test_the_matrix_covers_every_write_of_a_turn(places: Places) -> None:
    points: set[str] = set()
    # As above: a busy machine may end a turn's lease before the turn has passed all of its points.
    for number in range(_TRIES):
        lease = LIMITS.lease_seconds * 2**number
        points |= set(itertools.chain.from_iterable(count_points(places, turn, lease) for turn in TURNS))
    assert points >= {
        "store.begin_if_free",
        "store.journal_if_held",
        "store.append_events_if_held",
        "store.commit_if_head",
        "store.finish_if_held",
        "store.set_title",
        *SWEPT,
        "model.call",
        "model.chunk",
        "model.answer",
        "tool.start",
        "tool.end",
    }


def count_points(places: Places, turn: str, lease: float) -> set[str]:
    return set(asyncio.run(count_hits(places.new(), turn, lease)))
