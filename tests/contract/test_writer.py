"""The one writer of SQLite: transactions share a flush, and nothing else."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw
import pytest

from lastgood.errors import StoreError, StoreUnavailable
from lastgood.store.sqlite import writer as module
from lastgood.store.sqlite.writer import Threaded, Transaction

pytestmark = pytest.mark.anyio

#: Of a transaction that nobody may have to wait for.
LONG_SECONDS = 0.5


@pytest.fixture
def connection(tmp_path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(tmp_path / "x.db"))
    connection.pragma("journal_mode", "wal")
    connection.set_busy_timeout(5000)
    connection.execute("CREATE TABLE said (number INTEGER PRIMARY KEY)")
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


def other(tmp_path: Path) -> apsw.Connection:
    """Another program's."""
    return apsw.Connection(str(tmp_path / "x.db"))


async def together(writer: Threaded, *jobs: Transaction[int], durable: bool = True) -> list[object]:
    """Handed in at one go, so that they are one group."""
    running = [writer.run(job, durable=durable) for job in jobs]
    return list(await asyncio.gather(*running, return_exceptions=True))


async def longest_pause(while_this: Callable[[], bool]) -> float:
    """Of the loop."""
    longest, last = 0.0, time.perf_counter()
    while while_this():
        await asyncio.sleep(0.005)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


@pytest.mark.parametrize("durable", [True, False])
async def test_I18_one_that_fails_undoes_nothing_but_its_own(
    writer: Threaded, connection: apsw.Connection, durable: bool
) -> None:
    jobs = [says(1), says(2, ValueError("no")), says(3), says(4, apsw.ConstraintError("no"))]
    first, broken, third, refused = await together(writer, *jobs, durable=durable)
    assert (first, third) == (1, 3)
    assert isinstance(broken, ValueError)
    assert isinstance(refused, StoreError)
    assert written(connection) == [1, 3]


@pytest.mark.parametrize("durable", [True, False])
async def test_I18_one_that_fails_alone_leaves_the_writer_as_it_was(
    writer: Threaded, connection: apsw.Connection, durable: bool
) -> None:
    with pytest.raises(ValueError, match="no"):
        await writer.run(says(1, ValueError("no")), durable=durable)
    assert await writer.run(says(2), durable=durable) == 2
    assert written(connection) == [2]


async def test_I16_what_must_be_flushed_is_and_nothing_else_waits_for_it(
    writer: Threaded, connection: apsw.Connection
) -> None:
    found: list[tuple[str, object, bool]] = []

    def look(name: str) -> Transaction[None]:
        def work(connection: apsw.Connection) -> None:
            found.append((name, connection.pragma("synchronous"), connection.in_transaction))

        return work

    await asyncio.gather(
        writer.run(look("turn"), durable=True),
        writer.run(look("word"), durable=False),
        writer.run(look("tidy"), durable=False, long=True),
        writer.run(look("turn"), durable=True),
        writer.run(look("delete"), durable=True, long=True),
        writer.run(look("word"), durable=False),
    )
    assert found == [
        ("word", 1, True),
        ("word", 1, True),
        ("turn", 2, True),
        ("tidy", 1, True),
        ("turn", 2, True),
        ("delete", 2, True),
    ]


async def test_nobody_is_told_of_a_write_before_it_is_in_the_file(writer: Threaded, tmp_path: Path) -> None:
    elsewhere = other(tmp_path)
    for number, durable in enumerate([True, False, True]):
        await writer.run(says(number), durable=durable)
        assert written(elsewhere) == list(range(number + 1))


async def test_those_that_come_together_share_a_commit(writer: Threaded, connection: apsw.Connection) -> None:
    commits = 0

    def count() -> bool:
        nonlocal commits
        commits += 1
        return False

    connection.set_commit_hook(count)
    await together(writer, *map(says, range(40)))
    assert commits == 1
    await together(writer, *(says(40 + number) for number in range(module.MOST_IN_GROUP + 1)))
    assert commits == 3


@pytest.mark.parametrize("durable", [True, False])
async def test_a_commit_that_fails_fails_all_of_its_group_and_no_other(
    writer: Threaded, connection: apsw.Connection, durable: bool
) -> None:
    connection.pragma("foreign_keys", True)
    connection.execute("CREATE TABLE answered (number INTEGER REFERENCES said DEFERRABLE INITIALLY DEFERRED)")

    def answers_nobody(connection: apsw.Connection) -> int:
        connection.execute("INSERT INTO answered VALUES (99)")  # which is found at the COMMIT
        return 2

    jobs = (says(1), answers_nobody, says(3, ValueError("of its own")))
    first, second, third = await together(writer, *jobs, durable=durable)
    assert isinstance(first, StoreError)
    assert isinstance(second, StoreError)
    assert isinstance(third, ValueError)
    assert await together(writer, says(4), says(5), durable=durable) == [4, 5]
    assert written(connection) == [4, 5]


async def test_the_loop_does_not_wait_for_one_that_takes_long(writer: Threaded) -> None:
    def long(connection: apsw.Connection) -> None:
        time.sleep(LONG_SECONDS)

    running = asyncio.create_task(writer.run(long, durable=True, long=True))
    assert await longest_pause(lambda: not running.done()) < LONG_SECONDS / 2


async def test_the_connection_is_in_one_pair_of_hands_at_a_time(
    writer: Threaded, connection: apsw.Connection
) -> None:
    may_end = threading.Event()

    def long(connection: apsw.Connection) -> int:
        may_end.wait(15)
        return says(1)(connection)

    running = [asyncio.create_task(writer.run(long, durable=True, long=True))]
    await asyncio.sleep(0.05)
    for number, durable in ((2, False), (3, True)):
        running.append(asyncio.create_task(writer.run(says(number), durable=durable)))
        await asyncio.sleep(0.05)
    assert not any(task.done() for task in running)
    may_end.set()
    assert await asyncio.gather(*running) == [1, 2, 3]
    assert written(connection) == [1, 2, 3]


@pytest.mark.parametrize("durable", [True, False])
async def test_the_loop_does_not_wait_for_another_program_that_writes(
    writer: Threaded, tmp_path: Path, durable: bool
) -> None:
    await writer.run(says(0), durable=True, long=True)
    elsewhere = other(tmp_path)
    elsewhere.execute("BEGIN IMMEDIATE")
    running = asyncio.create_task(writer.run(says(1), durable=durable))
    timer = threading.Timer(LONG_SECONDS, lambda: elsewhere.execute("COMMIT"))
    timer.start()
    assert await longest_pause(lambda: not running.done()) < LONG_SECONDS / 2
    assert await running == 1
    timer.join()


async def test_another_program_that_writes_for_too_long_is_not_waited_for(
    writer: Threaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_MS", 50)
    elsewhere = other(tmp_path)
    elsewhere.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="try again"):
        await writer.run(says(1), durable=True)
    elsewhere.execute("COMMIT")
    assert await writer.run(says(2), durable=True) == 2


async def test_a_caller_that_has_gone_leaves_its_write_and_its_neighbours_alone(
    writer: Threaded, connection: apsw.Connection
) -> None:
    gone = asyncio.create_task(writer.run(says(1), durable=True))
    stays = asyncio.create_task(writer.run(says(2), durable=True))
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays == 2
    assert written(connection) == [1, 2]


@pytest.mark.parametrize("rounds", [0, 1, 2])
async def test_what_was_handed_in_before_the_end_is_written(
    writer: Threaded, tmp_path: Path, rounds: int
) -> None:
    """Whether it had begun or not."""
    kinds = [(True, False), (False, False), (True, True)]
    tasks = [
        asyncio.create_task(writer.run(says(number), durable=durable, long=long))
        for number, (durable, long) in enumerate(kinds)
    ]
    for _ in range(rounds + 1):
        await asyncio.sleep(0)
    writer.close()
    assert await asyncio.gather(*tasks) == [0, 1, 2]
    assert sorted(written(other(tmp_path))) == [0, 1, 2]
    with pytest.raises(StoreUnavailable, match="closed"):
        await writer.run(says(3), durable=True)


def test_a_loop_that_ends_in_the_middle_does_not_hold_the_next_one_up(
    connection: apsw.Connection,
) -> None:
    writer = Threaded(connection)
    may_end = threading.Event()

    def late(connection: apsw.Connection) -> int:
        may_end.wait(15)
        return says(1)(connection)

    async def leave() -> None:
        for job, long in ((late, True), (says(2), False)):
            asyncio.get_running_loop().create_task(writer.run(job, durable=True, long=long))
        await asyncio.sleep(0.05)

    asyncio.run(leave())
    may_end.set()
    assert any(asyncio.run(_is_written(writer, 3)) for _ in range(50))
    writer.close()


async def _is_written(writer: Threaded, number: int) -> bool:
    try:
        async with asyncio.timeout(0.2):
            return await writer.run(says(number), durable=True) == number
    except TimeoutError:
        return False
