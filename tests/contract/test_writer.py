"""The one writer of SQLite: transactions share a flush, and nothing else."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from lastgood.errors import StoreError, StoreFull, StoreUnavailable
from lastgood.store.sqlite import writer as module
from lastgood.store.sqlite.writer import Inline, Threaded, Transaction
from tests.polls import a_few_rounds

pytestmark = pytest.mark.anyio

#: Only ends a test that hangs. A loop that waits for what it should release hangs for as long.
PATIENCE_SECONDS = 15.0


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


def says(number: int, error: BaseException | None = None) -> Transaction[int]:
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


class Held:
    """A transaction that runs until `may_end` is set. Its result says whether it was."""

    def __init__(self, number: int) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self._number = number

    def __call__(self, connection: apsw.Connection) -> int:
        self.began.set()
        assert self.may_end.wait(PATIENCE_SECONDS), "the event loop waited for the transaction"
        return says(self._number)(connection)

    async def until_begun(self) -> None:
        assert await asyncio.to_thread(self.began.wait, PATIENCE_SECONDS)


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


async def test_a_write_is_confirmed_only_after_it_is_in_the_file(writer: Threaded, tmp_path: Path) -> None:
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
    long = Held(1)
    running = asyncio.create_task(writer.run(long, durable=True, long=True))
    await long.until_begun()
    long.may_end.set()
    assert await running == 1


async def test_the_connection_is_in_one_pair_of_hands_at_a_time(
    writer: Threaded, connection: apsw.Connection
) -> None:
    long = Held(1)
    running = [asyncio.create_task(writer.run(long, durable=True, long=True))]
    await long.until_begun()
    for number, durable in ((2, False), (3, True)):
        running.append(asyncio.create_task(writer.run(says(number), durable=durable)))
        await a_few_rounds()
    assert not any(task.done() for task in running)
    long.may_end.set()
    assert await asyncio.gather(*running) == [1, 2, 3]
    assert written(connection) == [1, 2, 3]


@pytest.mark.parametrize("after_long", [True, False])
@pytest.mark.parametrize("durable", [True, False])
async def test_the_loop_does_not_wait_for_another_program_that_writes(
    writer: Threaded, tmp_path: Path, durable: bool, after_long: bool
) -> None:
    if after_long:
        await writer.run(says(0), durable=True, long=True)
    elsewhere = other(tmp_path)
    elsewhere.execute("BEGIN IMMEDIATE")
    running = asyncio.create_task(writer.run(says(1), durable=durable))
    await a_few_rounds()  # a loop that waits here would wait until the write fails
    assert not running.done()
    elsewhere.execute("COMMIT")
    assert await running == 1


async def test_another_program_that_writes_for_too_long_is_not_waited_for(
    writer: Threaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUSY_MS", 50)
    elsewhere = other(tmp_path)
    elsewhere.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="retry"):
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


@pytest.mark.parametrize("begun", [True, False])
def test_remaining_work_of_a_loop_is_done_and_the_next_one_continues(
    connection: apsw.Connection, tmp_path: Path, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Threaded(connection)
    late, move_to = Held(1), writer._move_to

    async def leave() -> None:
        for job, long in ((late, True), (says(2), False)):
            asyncio.get_running_loop().create_task(writer.run(job, durable=True, long=long))
        await (late.until_begun() if begun else asyncio.sleep(0))

    def move_while_it_runs(loop: asyncio.AbstractEventLoop) -> None:
        late.may_end.set()
        move_to(loop)

    asyncio.run(leave())
    monkeypatch.setattr(writer, "_move_to", move_while_it_runs)
    assert asyncio.run(writer.run(says(3), durable=True)) == 3
    writer.close()
    assert sorted(written(other(tmp_path))) == [1, 2, 3]


async def test_two_loops_at_once_are_refused(writer: Threaded) -> None:
    await writer.run(says(1), durable=True)

    def elsewhere() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            asyncio.run(writer.run(says(2), durable=True))

    await asyncio.to_thread(elsewhere)


def test_a_file_is_closed_whatever_its_last_callers_do(connection: apsw.Connection) -> None:
    writer = Threaded(connection)

    async def leave() -> None:
        asyncio.get_running_loop().create_task(writer.run(says(1, StopIteration()), durable=True))
        asyncio.get_running_loop().create_task(writer.run(says(2), durable=True))
        await asyncio.sleep(0)

    asyncio.run(leave())
    writer.close()
    writer.close()
    with pytest.raises(apsw.ConnectionClosedError):
        connection.execute("SELECT 1")


# -- the log -----------------------------------------------------------------------------


async def test_only_the_thread_waits_for_the_disk(writer: Threaded, connection: apsw.Connection) -> None:
    here: list[bool] = []

    def note() -> bool:
        here.append(threading.current_thread() is threading.main_thread())
        return False

    connection.set_commit_hook(note)
    await writer.run(says(1), durable=True)
    await writer.run(says(2), durable=False)
    await writer.run(says(3), durable=True, long=True)
    assert here == [False, True, False]


@pytest.mark.parametrize("durable", [True, False])
async def test_the_log_does_not_grow_without_end(
    writer: Threaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """Nor where nothing is ever flushed, as in one very long turn."""
    monkeypatch.setattr(module, "LOG_PAGES", 20)
    for number in range(400):
        await writer.run(says(number), durable=durable)
    log = tmp_path / "x.db-wal"
    assert 0 < log.stat().st_size < 100 * 4096


# -- what goes wrong ---------------------------------------------------------------------


@pytest.mark.parametrize("long", [True, False])
@pytest.mark.parametrize("durable", [True, False])
async def test_a_full_disk_fails_those_that_need_more_of_it_and_passes(
    writer: Threaded, connection: apsw.Connection, durable: bool, long: bool
) -> None:
    def big(number: int) -> Transaction[int]:
        def work(connection: apsw.Connection) -> int:
            connection.execute("CREATE TABLE IF NOT EXISTS big (body BLOB)")
            connection.execute("INSERT INTO big VALUES (zeroblob(1000000))")
            return says(number)(connection)

        return work

    connection.pragma("max_page_count", 20)
    jobs = [writer.run(job, durable=durable, long=long) for job in (says(1), big(2), says(3), big(4))]
    first, *rest = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(rest[0], StoreFull)
    assert isinstance(rest[2], StoreFull)
    received = [number for number in (first, rest[1]) if isinstance(number, int)]
    assert written(connection) == received
    connection.pragma("max_page_count", 10_000)
    assert await writer.run(big(5), durable=durable, long=long) == 5


async def test_an_error_that_a_future_cannot_hold_is_replaced(writer: Threaded) -> None:
    found, second = await together(writer, says(1, StopIteration()), says(2))
    assert isinstance(found, RuntimeError)
    assert second == 2


@pytest.mark.parametrize("durable", [True, False])
async def test_one_that_fails_alone_is_not_run_again(writer: Threaded, durable: bool) -> None:
    runs = 0

    def work(connection: apsw.Connection) -> None:
        nonlocal runs
        runs += 1
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await writer.run(work, durable=durable)
    assert runs == 1


@pytest.mark.parametrize("durable", [True, False])
def test_ctrl_c_in_the_middle_does_not_keep_others_from_writing(
    connection: apsw.Connection, tmp_path: Path, durable: bool
) -> None:
    writer = Threaded(connection)

    def interrupted(connection: apsw.Connection) -> None:
        says(1)(connection)
        raise KeyboardInterrupt

    async def main() -> None:
        try:
            await writer.run(interrupted, durable=durable)
        finally:
            await writer.run(says(2), durable=durable)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    writer.close()
    assert written(other(tmp_path)) == [2]


class Moody(apsw.Connection):
    fails = False

    def wal_autocheckpoint(self, n: int) -> None:
        if self.fails:
            raise MemoryError
        super().wal_autocheckpoint(n)


async def test_what_could_not_be_switched_is_switched_again(tmp_path: Path) -> None:
    """A flush that is only believed to happen would be worse than none."""
    connection = Moody(str(tmp_path / "x.db"))
    connection.pragma("journal_mode", "wal")
    writer = Threaded(connection)
    found: list[object] = []

    def look(connection: apsw.Connection) -> None:
        found.append(connection.pragma("synchronous"))

    await writer.run(look, durable=True)
    connection.fails = True
    with pytest.raises(MemoryError):
        await writer.run(look, durable=False)
    connection.fails = False
    await writer.run(look, durable=True)
    writer.close()
    assert found == [2, 2]


# -- one by one --------------------------------------------------------------------------


async def test_inline_does_the_same_one_by_one(connection: apsw.Connection) -> None:
    writer = Inline(connection)
    found: list[object] = []
    for durable in (True, False):
        await writer.run(lambda connection: found.append(connection.pragma("synchronous")), durable=durable)
    assert found == [2, 1]
    for error in (ValueError("no"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            await writer.run(says(1, error), durable=True)
    with pytest.raises(StoreError):
        await writer.run(says(1, apsw.ConstraintError("no")), durable=True)
    assert await writer.run(says(2), durable=True) == 2
    assert written(connection) == [2]
    writer.close()
    with pytest.raises(StoreError):
        await writer.run(says(3), durable=True)
