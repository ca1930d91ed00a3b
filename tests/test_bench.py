"""The benchmark's bare loop writes the rows that a turn writes; otherwise its ratios would mean nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw

from lastgood.store.sqlite import open_sqlite
from tests.bench.__main__ import CALLERS, bare_loop, callers

TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"


def _rows(path: Path) -> dict[str, int]:
    connection = apsw.Connection(str(path))
    tables = [str(name) for (name,) in connection.execute(TABLES).fetchall()]
    counts = {name: len(connection.execute(f"SELECT 1 FROM {name}").fetchall()) for name in tables}
    connection.close()
    return counts


async def _ours(path: Path) -> None:
    store = open_sqlite(path)
    await callers(store, 2 * CALLERS)
    await store.close()


def test_the_bare_loop_writes_the_rows_of_a_turn(tmp_path: Path) -> None:
    asyncio.run(_ours(tmp_path / "ours.db"))
    bare_loop(tmp_path / "bare.db", 2 * CALLERS, CALLERS)
    bare = _rows(tmp_path / "bare.db")
    assert bare["turns"] == 2 * CALLERS
    assert bare == _rows(tmp_path / "ours.db")
