"""Seeded simulations of two nodes under faults; `make prove` runs more of them."""

from __future__ import annotations

import pytest

from tests.faults.simulation import Weather, simulate, trace

SEEDS = 60


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_every_seed_keeps_every_invariant(block: int) -> None:
    for seed in range(block * SEEDS // 6, (block + 1) * SEEDS // 6):
        assert simulate(seed) == [], f"seed {seed}"


def test_a_storm_keeps_every_invariant() -> None:
    weather = Weather(fault=0.15, stall=0.03, deaths=3)
    for seed in range(10):
        assert simulate(seed, weather) == [], f"seed {seed}"


def test_calm_weather_keeps_every_invariant() -> None:
    weather = Weather(fault=0.0, stall=0.0, deaths=0)
    for seed in range(5):
        assert simulate(seed, weather) == [], f"seed {seed}"


def test_a_seed_repeats_itself_to_the_byte() -> None:
    assert trace(7) == trace(7)
    assert trace(7) != trace(8)
