"""Lease renewals over a connection of their own.

The connection belongs to the event loop that opens it, which need not be the one that the rest of the store
is used on. It waits for no other statement and keeps no state on the server between two statements. It is
dropped at the first failure: a renewal that was not answered has renewed nothing, and the next one
connects again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import asyncpg

from lastgood.model.attempts import Attempt, Hold
from lastgood.model.ids import AttemptId
from lastgood.ports import Renew
from lastgood.store.postgres.attempts import held_of, of_holds
from lastgood.store.postgres.database import (
    ACQUIRE_SECONDS,
    FAILURES,
    split_dsn,
    translate,
    unreachable,
)
from lastgood.store.rows import Row
from lastgood.store.statements import Positional

_CLOSE_SECONDS = 1.0


@asynccontextmanager
async def renewals(dsn: str, statement: Positional) -> AsyncIterator[Renew]:
    """Connects when there is something to renew."""
    renewing = _Renewing(dsn, statement)
    try:
        yield renewing.renew
    finally:
        await renewing.close()


class _Renewing:
    def __init__(self, dsn: str, statement: Positional) -> None:
        self._address, self._prepared = split_dsn(dsn)
        self._statement = statement
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None

    async def renew(self, holds: Sequence[Hold], lease_seconds: float) -> dict[AttemptId, Attempt]:
        connection = await self._connect()
        values = self._statement.values(of_holds(holds, lease_seconds))
        try:
            return held_of(cast(list[Row], await connection.fetch(self._statement.text, *values)))
        except FAILURES as error:
            self._drop()
            raise translate(error, writing=True) from error
        except BaseException:
            # Cancelled, because no answer came in time: a late answer must not be read by the next statement.
            self._drop()
            raise

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        if self._connection is None or self._connection.is_closed():
            try:
                self._connection = await asyncpg.connect(
                    self._address,
                    timeout=ACQUIRE_SECONDS,
                    statement_cache_size=100 if self._prepared else 0,
                )
            except FAILURES as error:
                raise unreachable(error) from error
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        if self._connection is not None:
            try:
                await asyncio.wait_for(self._connection.close(), _CLOSE_SECONDS)
            except FAILURES:
                self._drop()
