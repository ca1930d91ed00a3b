"""Stories about the one connection that reads: nothing may hold it at an old snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

from lastgood.model.attempts import Begun
from lastgood.model.events import Event, TextStreamed
from lastgood.model.ids import DEFAULT_TENANT
from lastgood.model.stored_rows import StoredTable
from lastgood.store.sqlite.database import Row, SqliteDatabase
from lastgood.store.sqlite.store import SqliteInspection, SqliteStore
from tests.faults.defects import defect
from tests.faults.probes import Stage, probe


async def _sees_what_is_new(stage: Stage) -> None:
    made = await stage.world.create(stage.node)
    assert await stage.store.get_session(DEFAULT_TENANT, made) is not None, "a new session is not found"


@probe
async def a_page_of_events_that_ends_early_holds_no_later_read(stage: Stage) -> None:
    """I1, I18: a page ends when it is large enough. Its cursor must be closed then."""
    session = await stage.world.create(stage.node)
    _, begun = await stage.begin(session, 1)
    assert isinstance(begun, Begun)
    large = [Event(begun.hold.attempt, TextStreamed("x" * 600_000)) for _ in range(4)]
    await stage.store.append_events_if_held(begun.hold, large)
    page = await stage.store.read_events(DEFAULT_TENANT, session, after=0)
    assert len(page) < 5, "the page does not end early, so this shows nothing"
    await _sees_what_is_new(stage)


@probe
async def a_check_holds_no_other_read(stage: Stage) -> None:
    """I1, I18: a check reads one moment and awaits between its rows. Other reads go on meanwhile."""
    await stage.world.create(stage.node)
    async with stage.store.inspect() as look:
        async for _ in look.rows(StoredTable.SESSIONS):
            await _sees_what_is_new(stage)


@defect("a read keeps its cursor open")
def _() -> Iterator[None]:
    kept: list[Generator[Any, None, None]] = []

    def rows(
        self: SqliteDatabase,
        name: str,
        parameters: Mapping[str, Any],
        *,
        is_last: Callable[[Row], bool] = lambda row: False,
    ) -> list[Row]:
        found: list[Row] = []
        left = self._rows(name, parameters)
        kept.append(left)
        for row in left:
            assert isinstance(row, tuple)
            found.append(row)
            if is_last(row):
                break
        return found

    with patch.object(SqliteDatabase, "rows", rows):
        yield


@defect("a check reads on the connection that others read on")
def _() -> Iterator[None]:
    @asynccontextmanager
    async def inspect(self: SqliteStore) -> AsyncIterator[SqliteInspection]:
        with self.db.snapshot():
            yield SqliteInspection(self.db)

    with patch.object(SqliteStore, "inspect", inspect):
        yield
