"""The one writer of SQLite: transactions share a flush, and nothing else."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from lastgood.errors import StoreError
from lastgood.store.sqlite.writer import Threaded, Transaction

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 15.0


class Group:
    """Holds the writer at a transaction, so that all that are handed in meanwhile become one group."""

    def __init__(self, writer: Threaded) -> None:
        self._writer = writer
        self._open = threading.Event()

    async def __aenter__(self) -> None:
        at, loop = asyncio.Event(), asyncio.get_running_loop()

        def hold(connection: apsw.Connection) -> None:
            loop.call_soon_threadsafe(at.set)
            self._open.wait(PATIENCE_SECONDS)

        self._held = asyncio.create_task(self._writer.run(hold, durable=False))
        await at.wait()

    async def __aexit__(self, *_: object) -> None:
        self._open.set()
        await self._held


@pytest.fixture
def connection(tmp_path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(tmp_path / "x.db"))
    connection.pragma("journal_mode", "wal")
    connection.execute("CREATE TABLE said (number INTEGER)")
    return connection


@pytest.fixture
async def writer(connection: apsw.Connection) -> AsyncIterator[Threaded]:
    writer = Threaded(connection)
    yield writer
    writer.close()


def says(number: int, error: Exception | None = None) -> Transaction[int]:
    def work(connection: apsw.Connection) -> int:
        connection.execute("INSERT INTO said VALUES (?)", (number,))
        if error is not None:
            raise error
        return number

    return work


def written(connection: apsw.Connection) -> list[int]:
    return [int(number) for (number,) in connection.execute("SELECT number FROM said")]


async def test_I18_one_that_fails_undoes_nothing_but_its_own(
    writer: Threaded, connection: apsw.Connection
) -> None:
    async with Group(writer):
        jobs = [says(1), says(2, ValueError("no")), says(3), says(4, apsw.ConstraintError("no"))]
        tasks = [asyncio.create_task(writer.run(job, durable=True)) for job in jobs]
        await asyncio.sleep(0)
    first, broken, third, refused = await asyncio.gather(*tasks, return_exceptions=True)
    assert (first, third) == (1, 3)
    assert isinstance(broken, ValueError)
    assert isinstance(refused, StoreError)
    assert written(connection) == [1, 3]


async def test_I16_a_group_is_flushed_if_one_of_it_asks_for_that(
    writer: Threaded, connection: apsw.Connection
) -> None:
    found: list[object] = []

    def look(connection: apsw.Connection) -> None:
        found.append(connection.pragma("synchronous"))

    for kinds in ([False], [False, True], [True], [False, False]):
        async with Group(writer):
            tasks = [asyncio.create_task(writer.run(look, durable=durable)) for durable in kinds]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
    assert found == [1, 2, 2, 2, 1, 1]


async def test_what_was_handed_in_before_the_end_is_written(
    writer: Threaded, connection: apsw.Connection, tmp_path: Path
) -> None:
    task = asyncio.create_task(writer.run(says(1), durable=True))
    await asyncio.sleep(0)
    writer.close()
    assert await task == 1
    assert written(apsw.Connection(str(tmp_path / "x.db"))) == [1]
