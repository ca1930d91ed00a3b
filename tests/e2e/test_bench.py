"""`lastgood bench` measures a server of its own, and says what it compares with."""

from pathlib import Path

import pytest

from tests.e2e.command import Command


@pytest.mark.slow
def test_bench_measures_real_turns_beside_a_floor(tmp_path: Path) -> None:
    lastgood = Command(tmp_path)
    done = lastgood("bench", "--turns", "20", "--callers", "4", "--json")
    assert done.code == 0, done.err
    found = done.json
    assert (found["turns"], found["callers"]) == (20, 4)
    measured = ("turns_per_second", "first_token", "start")
    floors = ("floor_turns_per_second", "floor_cpu_per_turn", "floor_first_token")
    assert all(found[name] > 0 for name in (*measured, *floors)), found
    assert not lastgood.database.exists()  # the data of its user is left alone


def test_bench_rejects_numbers_that_measure_nothing(tmp_path: Path) -> None:
    done = Command(tmp_path)("bench", "--turns", "0")
    assert done.code == 2
    assert "--turns" in done.err
