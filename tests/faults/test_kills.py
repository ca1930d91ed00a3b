"""kill -9 at random instants; `make prove` kills more often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.kills import rounds
from tests.faults.stores import Places
from tests.postgres import PostgresServer

pytestmark = pytest.mark.slow


def test_no_acknowledged_turn_is_lost_on_sqlite(tmp_path: Path) -> None:
    """I16, I12: and every session answers at once."""
    places = Places(tmp_path, None)
    for seed in range(3):
        result = rounds(places.new(), places.diary(), seed, 20)
        assert result.found == []
        assert result.kills == 20


def test_no_acknowledged_turn_is_lost_on_postgres(tmp_path: Path, postgres_server: PostgresServer) -> None:
    places = Places(tmp_path, postgres_server)
    for seed in range(2):
        result = rounds(places.new(), places.diary(), seed, 10)
        assert result.found == []
        assert result.acknowledged > 0
