"""SIGKILL and SIGTERM at random instants; `make prove` ends more processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lastgood.errors import AttemptLost
from lastgood.flows import running_attempts as flow_running
from lastgood.flows.attempt_end import AttemptStop
from lastgood.model.attempts import Begin, BeginConflict, Begun
from lastgood.model.events import Event
from lastgood.store.sqlite.attempts import SqliteAttempts
from tests.faults.kills import Ending, rounds
from tests.faults.outage import outages_of
from tests.faults.stores import Places
from tests.postgres import PostgresServer

pytestmark = pytest.mark.slow


def test_no_acknowledged_turn_is_lost_on_sqlite(tmp_path: Path) -> None:
    """I16, I12: and every session answers at once."""
    places, edits = Places(tmp_path, None), 0
    for seed in range(3):
        result = rounds(places.new(), places.client_log(), seed, 20)
        assert result.found == []
        assert result.processes == 20
        assert all(result.endings.values())
        edits += result.edits
    assert edits > 0


def test_no_acknowledged_turn_is_lost_on_postgres(tmp_path: Path, postgres_server: PostgresServer) -> None:
    places = Places(tmp_path, postgres_server)
    for seed in range(2):
        result = rounds(places.new(), places.client_log(), seed, 10)
        assert result.found == []
        assert result.acknowledged > 0


def test_no_acknowledged_turn_is_lost_while_the_database_is_away(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    """I16, I12: for 0.2 to 5 s; connections are closed or silent; some processes end meanwhile."""
    places = Places(tmp_path, postgres_server)
    with outages_of(postgres_server.dsn("postgres")) as outages:
        result = rounds(places.new(), places.client_log(), 0, 10, outages=outages)
    assert result.found == []
    assert result.outages > 0
    assert result.acknowledged > 0


def test_an_edit_that_moves_the_head_before_its_commit_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted defect: the children inherit it."""
    real = SqliteAttempts.begin_if_free

    async def begin_if_free(self: Any, begin: Begin, events: Sequence[Event]) -> Begun | BeginConflict:
        found = await real(self, begin, events)
        if isinstance(found, Begun) and begin.ask.edit is not None:
            base = begin.base
            moved = (base.turn, base.seq, base.hash) if base else (None, 0, None)
            sql = "UPDATE sessions SET head = ?, seq = ?, head_hash = ? WHERE id = ?"
            await self.db.write(
                lambda connection: connection.execute(sql, (*moved, begin.ask.session)) and None
            )
        return found

    monkeypatch.setattr(SqliteAttempts, "begin_if_free", begin_if_free)
    places = Places(tmp_path, None)
    results = (rounds(places.new(), places.client_log(), seed, 10, (Ending.KILL,)) for seed in range(10))
    found = next((result.found for result in results if result.found), [])
    assert any(one.startswith(("I2", "I16")) for one in found), found


def test_a_stop_that_leaves_its_attempts_held_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted defect: the children inherit it."""
    monkeypatch.setattr(flow_running, "_STOPPED", AttemptStop(None, AttemptLost("planted")))
    places = Places(tmp_path, None)
    results = (rounds(places.new(), places.client_log(), seed, 4, (Ending.STOP,)) for seed in range(25))
    assert any(result.found for result in results)
