"""Opening: whose database it is, and that what is not ours is left as it is."""

import asyncio
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import anyio
import apsw
import asyncpg
import pytest

from lastgood.errors import (
    DatabaseDamaged,
    LastgoodError,
    NewerDatabase,
    NotADatabase,
    OlderDatabase,
    SchemaMismatch,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreUnavailable,
)
from lastgood.store.migrations import Migration, migrations
from lastgood.store.postgres import open_postgres
from lastgood.store.sqlite import SqliteStore, open_sqlite
from lastgood.store.sqlite.database import open_beside, open_database
from tests.contract import builders
from tests.contract.builders import TENANT
from tests.contract.conftest import SqliteBackend, dump
from tests.postgres import PostgresServer

pytestmark = pytest.mark.anyio

NEXT = len(migrations("sqlite")) + 1
INCOMPATIBLE = Migration(NEXT, NEXT, ("CREATE TABLE newer (a INTEGER)",))
COMPATIBLE = Migration(NEXT, 1, ("CREATE TABLE newer (a INTEGER)",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lastgood.db"


def files_of(path: Path) -> dict[str, bytes]:
    """The database and whatever lies next to it; an empty log and its index say nothing."""
    found = {each.name: each.read_bytes() for each in path.parent.iterdir() if each.is_file()}
    return {name: data for name, data in found.items() if data and not name.endswith((".lock", "-shm"))}


async def test_I16_what_was_written_is_there_after_opening_again(path: Path) -> None:
    store = open_sqlite(path)
    session = await builders.session(store)
    turns = await builders.talk(store, session, 3)
    await store.close()
    store = open_sqlite(path)
    assert list(await store.read_turns(TENANT, turns[-1].id)) == turns
    await store.close()


async def test_a_closed_store_says_so(path: Path) -> None:
    store = open_sqlite(path)
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await builders.session(store)


def test_I41_the_file_is_for_its_owner_alone(path: Path) -> None:
    with closing(open_database(path)):
        assert path.stat().st_mode & 0o777 == 0o600


# --- not ours ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"hello, this is a diary\n" * 300, b"SQLite format 3\x00" + b"\xff" * 8000]
)
def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(NotADatabase):
            open_sqlite(path, read_only=read_only)
    assert files_of(path) == {path.name: content}


@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize("mark", [0, 0x12345678])
def test_the_database_of_another_program_is_refused_and_left_as_it_is(
    path: Path, mode: str, mark: int
) -> None:
    with closing(apsw.Connection(str(path))) as other:
        other.pragma("journal_mode", mode)
        other.pragma("application_id", mark)
        other.execute("CREATE TABLE sessions (id TEXT)")
    before = files_of(path)
    for read_only in (False, True):
        with pytest.raises(NotADatabase, match="another program"):
            open_sqlite(path, read_only=read_only)
    assert files_of(path) == before


@pytest.mark.parametrize("mode", ["wal", "delete"])  # a copy made by VACUUM INTO comes without a log
def test_I30_a_newer_database_is_refused_and_left_as_it_is(path: Path, mode: str) -> None:
    open_database(path, steps=(*migrations("sqlite"), INCOMPATIBLE)).close()
    with closing(apsw.Connection(str(path))) as copied:
        copied.pragma("journal_mode", mode)
    before = files_of(path)
    for read_only in (False, True):
        with pytest.raises(NewerDatabase, match="Upgrade"):
            open_sqlite(path, read_only=read_only)
    assert files_of(path) == before


async def test_I30_a_newer_database_that_we_can_serve_is_opened(path: Path) -> None:
    open_database(path, steps=(*migrations("sqlite"), COMPATIBLE)).close()
    store = open_sqlite(path)
    await builders.commit(store, await builders.session(store))
    await store.close()


def other_step(dialect: str) -> tuple[Migration, ...]:
    """The schema as another development version has it, under the same number."""
    first, *rest = migrations(dialect)
    changed = (*first.statements, "CREATE TABLE another (a INTEGER)")
    return (Migration(first.version, first.compatible_from, changed), *rest)


@pytest.mark.parametrize("migrate", [True, False])
def test_a_database_of_another_development_version_is_rejected_with_a_reason(
    path: Path, migrate: bool
) -> None:
    open_database(path, steps=other_step("sqlite")).close()
    before = files_of(path)
    for read_only in (False, True):
        with pytest.raises(SchemaMismatch, match=r"different development version.*Move it away") as refused:
            open_sqlite(path, read_only=read_only, migrate=migrate)
        assert str(path) in refused.value.message
    with pytest.raises(SchemaMismatch):
        open_beside(path)
    assert files_of(path) == before


def test_a_database_without_digests_is_rejected_with_a_reason(path: Path) -> None:
    open_database(path).close()
    with closing(apsw.Connection(str(path))) as older:
        older.execute("ALTER TABLE lastgood_schema DROP COLUMN digest")
    with pytest.raises(SchemaMismatch, match="different development version"):
        open_sqlite(path)


@pytest.mark.parametrize("is_empty", [True, False], ids=["empty", "missing"])
async def test_I18_a_database_that_is_gone_beside_its_log_is_refused_and_left_as_it_is(
    path: Path, tmp_path: Path, is_empty: bool
) -> None:
    """SQLite would delete the log, and the server would start with no session at all."""
    store = open_sqlite(path)
    await builders.commit(store, await builders.session(store))
    lost = tmp_path / "lost" / path.name
    lost.parent.mkdir()
    for suffix in ("", "-wal"):
        (lost.parent / (path.name + suffix)).write_bytes((tmp_path / (path.name + suffix)).read_bytes())
    await store.close()
    if is_empty:
        lost.write_bytes(b"")
    else:
        lost.unlink()
    before = files_of(lost)
    assert before, "there is a log"
    words = "is empty" if is_empty else "is missing"
    for read_only in (False, True):
        with pytest.raises(DatabaseDamaged, match=f"{words}.*write-ahead log.*backup"):
            open_sqlite(lost, read_only=read_only)
    with pytest.raises(DatabaseDamaged, match=words):
        open_beside(lost)
    assert files_of(lost) == before


def test_an_empty_file_without_a_log_is_set_up(path: Path) -> None:
    path.touch()
    open_database(path).close()
    assert path.stat().st_size > 0


def test_a_refused_open_leaves_no_lock_behind(path: Path) -> None:
    steps = (*migrations("sqlite"), INCOMPATIBLE)
    open_database(path, steps=steps).close()
    with pytest.raises(NewerDatabase):
        open_sqlite(path)
    open_database(path, steps=steps).close()


# --- who may not change the schema -------------------------------------------------------------------------


async def test_without_migrating_a_schema_that_is_ours_is_opened(path: Path) -> None:
    await open_sqlite(path).close()
    store = open_sqlite(path, migrate=False)
    await builders.commit(store, await builders.session(store))
    await store.close()


def test_without_migrating_an_older_schema_is_refused_and_left_as_it_is(path: Path) -> None:
    open_database(path).close()
    before = files_of(path)
    newer = (*migrations("sqlite"), INCOMPATIBLE)
    with pytest.raises(OlderDatabase, match=rf"schema {NEXT - 1}.*needs schema {NEXT};.*--migrate auto"):
        open_database(path, steps=newer, migrate=False)
    assert files_of(path) == before
    open_database(path, steps=newer).close()  # no lock is left behind


def test_without_migrating_nothing_is_set_up(path: Path) -> None:
    with pytest.raises(OlderDatabase, match="has no schema"):
        open_sqlite(path, migrate=False)
    assert list(path.parent.iterdir()) == []
    path.touch()
    with pytest.raises(OlderDatabase, match="has no schema"):
        open_sqlite(path, migrate=False)
    assert path.stat().st_size == 0


def test_I30_without_migrating_a_newer_schema_that_we_can_serve_is_opened(path: Path) -> None:
    """Else a node could not start again while the others are replaced one by one."""
    open_database(path, steps=(*migrations("sqlite"), COMPATIBLE)).close()
    open_database(path, migrate=False).close()


# --- cannot be written -------------------------------------------------------------------------------------


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may write everywhere, so for a moment we are nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(pwd.getpwnam("nobody").pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unwritable_folder_is_named(path: Path) -> None:
    # Reads what opening needs of the package while we may: below root's home, `nobody` may not.
    asyncio.run(open_sqlite(path).close())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        with without_privileges(), pytest.raises(StoreFull, match="Permission denied") as refused:
            open_sqlite(folder / "lastgood.db")
        assert name in refused.value.message
        assert list(folder.iterdir()) == []
        folder.chmod(0o755)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        open_sqlite(tmp_path / "missing" / "lastgood.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_database(path: Path) -> None:
    path.mkdir()
    for read_only in (False, True):
        with pytest.raises(StoreError):
            open_sqlite(path, read_only=read_only)
    assert list(path.iterdir()) == []


def test_nothing_is_read_where_nothing_is(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="No database"):
        open_sqlite(path, read_only=True)
    assert not path.exists()


async def writer_limited_to(store: SqliteStore, pages: int) -> None:
    await store.db.write(lambda connection: connection.pragma("max_page_count", pages))


async def test_I18_a_full_disk_is_said_and_changes_nothing(path: Path) -> None:
    backend = SqliteBackend(path)
    store = backend.store
    assert isinstance(store, SqliteStore)
    session = await builders.session(store)
    await builders.talk(store, session, 2)
    tried = await builders.start(store, builders.ask(session))
    before = await dump(backend)
    await writer_limited_to(store, 1)  # SQLite takes the size that the file has
    with pytest.raises(StoreFull):
        await store.commit_if_head(
            tried.hold, tried.plan(builders.answer("x" * 100_000)), builders.events("x")
        )
    with pytest.raises(StoreFull):
        await builders.session(store, title="x" * 100_000)
    assert await dump(backend) == before
    assert (await builders.again(store, session)).attempt == tried.hold.attempt

    await writer_limited_to(store, 1_000_000)
    assert (await store.commit_if_head(tried.hold, tried.plan(), [])).outcome == "yes"
    await backend.close()


async def test_I16_on_a_full_disk_exactly_what_was_acknowledged_is_there(path: Path) -> None:
    """Writers that share a transaction share its fate, or are told apart; nobody is told a lie."""
    backend = SqliteBackend(path)
    store = backend.store
    assert isinstance(store, SqliteStore)
    await builders.session(store)
    await writer_limited_to(store, 1)
    acknowledged: set[str] = set()

    async def make(size: int) -> None:
        new = builders.new_session(title="x" * size)
        try:
            await store.create_session(new)
        except StoreFull:
            return
        acknowledged.add(new.id)

    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(make, 10 if number % 3 else 50_000)
    await writer_limited_to(store, 1_000_000)
    kept = {id for (id,) in await backend.rows("SELECT id FROM sessions WHERE title <> ''")}
    assert kept == acknowledged
    await builders.session(store)
    await backend.close()


# --- somebody else's just now ------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from lastgood.errors import StoreError
from lastgood.store.sqlite import open_sqlite

sys.stdin.readline()
try:
    store = open_sqlite(Path(sys.argv[1]))
except StoreError as error:
    print(type(error).__name__, error, flush=True)
else:
    print("opened", flush=True)
sys.stdin.readline()
"""


class Opener:
    """Another process that opens the file when told to, and keeps it until told to leave."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def __enter__(self) -> "Opener":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


async def test_I9_a_file_has_one_writer_and_the_second_gets_its_name(path: Path) -> None:
    with Opener(path) as other:
        other.tell()
        assert other.answer() == "opened"
        with pytest.raises(StoreLocked, match=f"pid {other.process.pid}") as refused:
            open_sqlite(path)
        assert str(path) in refused.value.message
        # Looking is allowed.
        reader = open_sqlite(path, read_only=True)
        assert (await reader.list_sessions(TENANT, limit=10)).sessions == ()
        await reader.close()
    # However it dies, its lock dies with it.
    await open_sqlite(path).close()


def test_I9_of_two_processes_that_open_a_new_file_one_wins(path: Path) -> None:
    with Opener(path) as one, Opener(path) as other:
        one.tell()
        other.tell()
        answers = sorted([one.answer().split()[0], other.answer().split()[0]])
    assert answers == ["StoreLocked", "opened"]


async def test_a_store_opened_for_reading_sees_the_writer_and_writes_nothing(path: Path) -> None:
    writer = open_sqlite(path)
    session = await builders.session(writer)
    reader = open_sqlite(path, read_only=True)
    turn = await builders.commit(writer, session)
    assert await reader.read_turns(TENANT, turn.id) == (turn,)
    with pytest.raises(StoreLocked):
        await reader.set_field(TENANT, session.id, "starred", True)
    with pytest.raises(StoreLocked):
        await builders.session(reader)
    await reader.close()
    await builders.commit(writer, session)
    await writer.close()


# --- PostgreSQL --------------------------------------------------------------------------------------------


@pytest.fixture
def empty(postgres_server: PostgresServer) -> Iterator[str]:
    postgres_server.create_database("opening")
    yield postgres_server.dsn("opening")
    postgres_server.drop_database("opening")


async def tables_of(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    found = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    await connection.close()
    return [str(row[0]) for row in found]


@pytest.mark.parametrize("newer", [INCOMPATIBLE, COMPATIBLE], ids=["incompatible", "compatible"])
async def test_I30_a_newer_schema_on_postgres_is_opened_only_if_we_can_serve_it(
    empty: str, newer: Migration
) -> None:
    await (await open_postgres(empty, steps=(*migrations("postgres"), newer))).close()
    before = await tables_of(empty)
    if newer is COMPATIBLE:
        store = await open_postgres(empty)
        await builders.commit(store, await builders.session(store))
        await store.close()
    else:
        with pytest.raises(NewerDatabase, match="Upgrade"):
            await open_postgres(empty)
    assert await tables_of(empty) == before


async def test_a_database_of_another_development_version_on_postgres_is_rejected_with_a_reason(
    empty: str,
) -> None:
    await (await open_postgres(empty, steps=other_step("postgres"))).close()
    before = await tables_of(empty)
    for migrate, read_only in ((True, False), (False, False), (True, True)):
        with pytest.raises(SchemaMismatch, match=r"different development version.*Move it away"):
            await open_postgres(empty, migrate=migrate, read_only=read_only)
    assert await tables_of(empty) == before
    connection = await asyncpg.connect(empty)
    await connection.execute("ALTER TABLE lastgood_schema DROP COLUMN digest")
    await connection.close()
    with pytest.raises(SchemaMismatch, match="different development version"):
        await open_postgres(empty)


async def test_without_migrating_a_schema_on_postgres_is_opened_only_as_it_is(empty: str) -> None:
    with pytest.raises(OlderDatabase, match="has no schema"):
        await open_postgres(empty, migrate=False)
    assert await tables_of(empty) == []
    await (await open_postgres(empty)).close()
    before = await tables_of(empty)
    with pytest.raises(OlderDatabase, match=rf"schema {NEXT - 1}.*needs schema {NEXT};"):
        await open_postgres(empty, steps=(*migrations("postgres"), INCOMPATIBLE), migrate=False)
    assert await tables_of(empty) == before
    store = await open_postgres(empty, migrate=False)
    await builders.commit(store, await builders.session(store))
    await store.close()
    await (await open_postgres(empty, steps=(*migrations("postgres"), COMPATIBLE))).close()
    await (await open_postgres(empty, migrate=False)).close()


async def test_the_schema_of_another_program_on_postgres_is_left_as_it_is(empty: str) -> None:
    connection = await asyncpg.connect(empty)
    await connection.execute("CREATE TABLE turns (id text)")
    await connection.close()
    with pytest.raises(NotADatabase, match="another program"):
        await open_postgres(empty)
    assert await tables_of(empty) == ["turns"]


async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        await open_postgres(f"postgresql://postgres@/x?host={tmp_path}")


async def test_a_database_that_is_not_there_is_an_error_of_ours(postgres_server: PostgresServer) -> None:
    with pytest.raises(LastgoodError, match="nobody_made_this"):
        await open_postgres(postgres_server.dsn("nobody_made_this"))


async def test_two_nodes_on_one_postgres_see_each_others_turns(empty: str) -> None:
    one, other = await open_postgres(empty), await open_postgres(empty)
    session = await builders.session(one)
    turn = await builders.commit(one, session)
    assert await other.read_turns(TENANT, turn.id) == (turn,)
    await builders.commit(other, session)
    assert (await builders.again(one, session)).turns == 2
    await one.close()
    await other.close()
