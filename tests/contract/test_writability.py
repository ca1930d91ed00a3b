"""Whether the store can be written, as readiness probes ask: on both stores, with few writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from lastgood.errors import StoreFull, StoreUnavailable
from lastgood.store.postgres import PostgresStore
from lastgood.store.sqlite import SqliteStore
from lastgood.store.writability import FRESH_SECONDS, RETRY_SECONDS, Writability
from tests.contract import builders
from tests.contract.conftest import Backend


class Disk:
    """Counts test writes; fails while it is full."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.writes = 0
        self.is_full = False
        self.writability = Writability(self.write, lambda: self.now)

    async def write(self) -> None:
        self.writes += 1
        await asyncio.sleep(0)
        if self.is_full:
            raise StoreFull()

    async def is_ready(self) -> bool:
        return await self.writability.why_not() is None


async def test_probes_of_a_healthy_store_write_once_in_a_while() -> None:
    disk = Disk()
    for _ in range(100):
        assert await disk.is_ready()
    assert disk.writes == 1
    disk.now += FRESH_SECONDS
    assert await disk.is_ready()
    assert disk.writes == 2


async def test_real_writes_replace_test_writes() -> None:
    disk = Disk()
    for _ in range(20):
        disk.writability.succeeded()
        disk.now += FRESH_SECONDS / 2
        assert await disk.is_ready()
    assert disk.writes == 0


async def test_probes_that_come_together_share_one_test_write() -> None:
    disk = Disk()
    assert all(await asyncio.gather(*(disk.is_ready() for _ in range(20))))
    assert disk.writes == 1


async def test_a_failed_write_is_checked_at_once_and_then_every_second() -> None:
    disk = Disk()
    assert await disk.is_ready()
    disk.is_full = True
    assert await disk.is_ready()  # nobody has noticed yet
    disk.writability.failed()
    for _ in range(10):
        assert not await disk.is_ready()
    assert disk.writes == 2
    disk.now += RETRY_SECONDS
    assert not await disk.is_ready()
    disk.is_full = False
    disk.now += RETRY_SECONDS
    assert await disk.is_ready()


async def test_small_writes_that_succeed_do_not_hide_a_full_disk() -> None:
    disk = Disk()
    disk.is_full = True
    disk.writability.failed()
    disk.writability.succeeded()
    assert not await disk.is_ready()
    disk.writability.succeeded()
    disk.now += RETRY_SECONDS
    assert not await disk.is_ready()


pytestmark = pytest.mark.anyio

Switch = Callable[[bool], Awaitable[None]]


def read_only_switch(backend: Backend) -> Switch:
    """Makes the database of a running store read-only, and writable again."""
    store = backend.store

    async def sqlite(on: bool) -> None:
        assert isinstance(store, SqliteStore)
        writer = store.db._writer
        writer._connection.pragma("query_only", on)  # type: ignore[attr-defined]

    async def postgres(on: bool) -> None:
        assert isinstance(store, PostgresStore)
        name = (await backend.rows("SELECT current_database()"))[0][0]
        await backend.execute(
            f"ALTER DATABASE {name} SET default_transaction_read_only = {'on' if on else 'off'}"
        )
        await store.db._pool.expire_connections()  # the setting is for new connections

    return sqlite if isinstance(store, SqliteStore) else postgres


async def test_a_read_only_database_is_not_writable_and_recovers_by_itself(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastgood.store.writability.RETRY_SECONDS", 0.0)
    store, switch = backend.store, read_only_switch(backend)
    await builders.session(store)
    assert await store.why_not_writable() is None
    await switch(True)
    try:
        with pytest.raises(StoreUnavailable):
            await builders.session(store)
        why = await store.why_not_writable()
        assert why is not None
        assert why.startswith("the database cannot be written: ")
    finally:
        await switch(False)
    assert await store.why_not_writable() is None
    await builders.session(store)


async def test_probes_of_an_idle_store_do_not_write_each_time(backend: Backend) -> None:
    assert await backend.store.why_not_writable() is None
    before = await backend.rows("SELECT filler FROM write_probe")
    for _ in range(10):
        assert await backend.store.why_not_writable() is None
    assert await backend.rows("SELECT filler FROM write_probe") == before
    assert len(before) == 1
