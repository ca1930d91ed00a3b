"""Seeded simulations of two nodes under faults; `make prove` runs more of them."""

from __future__ import annotations

import pytest

from tests.faults.simulation import Weather, simulate, simulated

SEEDS = 60


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_every_seed_keeps_every_invariant(block: int) -> None:
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6):
        assert simulate(seed) == [], f"seed {seed}"


def test_a_storm_keeps_every_invariant() -> None:
    weather = Weather(fault=0.15, stall=0.03, deaths=3, stops=3)
    for seed in range(10):
        assert simulate(seed, weather) == [], f"seed {seed}"


def test_calm_weather_keeps_every_invariant() -> None:
    weather = Weather(fault=0.0, stall=0.0, deaths=0)
    for seed in range(5):
        assert simulate(seed, weather) == [], f"seed {seed}"


def test_edits_are_committed_and_a_stopped_node_holds_nothing() -> None:
    """Undisturbed, so that what is held after a stop is the node's own fault."""
    weather = Weather(fault=0.0, stall=0.0, deaths=0, outages=0, stops=3)
    runs = [simulated(seed, weather) for seed in range(10)]
    assert [run.found for run in runs] == [[]] * len(runs)
    assert sum(run.stops for run in runs) == 30
    assert sum(run.edits for run in runs) >= 5, "the simulation hardly edits"


def test_a_seed_repeats_itself_to_the_byte() -> None:
    assert simulated(7).prompts == simulated(7).prompts
    assert simulated(7).prompts != simulated(8).prompts
