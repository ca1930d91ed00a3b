"""Migrations: die anywhere, start again, reach the same end (I19)."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg
import pytest

from lastgood.errors import NewerDatabase, SchemaMismatch
from lastgood.store.migrations import Applied, Migration, migration, migrations, pending, refuse_older
from lastgood.store.postgres import open_postgres
from lastgood.store.sqlite.database import open_database
from tests.postgres import PostgresServer

Schema = list[tuple[Any, ...]]
Steps = tuple[Migration, ...]

SECOND = Migration(
    101,
    1,
    (
        "ALTER TABLE sessions ADD COLUMN colour TEXT",
        "UPDATE sessions SET colour = 'blue'",
        "CREATE INDEX sessions_by_colour ON sessions (colour)",
    ),
)
THIRD = Migration(
    102,
    101,
    (
        "CREATE TABLE colours (name TEXT PRIMARY KEY)",
        "INSERT INTO colours SELECT DISTINCT colour FROM sessions",
    ),
)
INSERT = (
    "INSERT INTO sessions (id, tenant, agent_key, segment, created_at, updated_at)"
    " VALUES ('s', 't', 'a', 's', 0, 0)"
)


class Place(Protocol):
    """Somewhere a database can be made, brought up to some steps, and looked at from outside."""

    dialect: str

    def upgrade(self, steps: Steps) -> None: ...

    def schema(self) -> Schema: ...

    def ledger(self) -> Schema: ...

    def rows(self, sql: str) -> Schema: ...

    def execute(self, sql: str) -> None: ...

    def empty(self) -> None: ...


class SqlitePlace:
    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path

    def upgrade(self, steps: Steps) -> None:
        open_database(self.path, steps=steps, inline=True).close()

    def rows(self, sql: str) -> Schema:
        if not self.path.exists():
            return []
        with closing(apsw.Connection(str(self.path))) as connection:
            return list(connection.execute(sql))

    def execute(self, sql: str) -> None:
        self.rows(sql)

    def schema(self) -> Schema:
        return self.rows("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")

    def ledger(self) -> Schema:
        if not self.rows("SELECT 1 FROM sqlite_schema WHERE name = 'lastgood_schema'"):
            return []
        return self.rows("SELECT version, compatible_from, digest FROM lastgood_schema ORDER BY version")

    def empty(self) -> None:
        for each in self.path.parent.iterdir():
            each.unlink()


class PostgresPlace:
    dialect = "postgres"

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def upgrade(self, steps: Steps) -> None:
        async def up() -> None:
            await (await open_postgres(self.dsn, steps=steps)).close()

        asyncio.run(up())

    def rows(self, sql: str) -> Schema:
        async def read() -> Schema:
            connection = await asyncpg.connect(self.dsn)
            try:
                return [tuple(row) for row in await connection.fetch(sql)]
            finally:
                await connection.close()

        return asyncio.run(read())

    def execute(self, sql: str) -> None:
        self.rows(sql)

    def schema(self) -> Schema:
        return self.rows(
            "SELECT 'column' AS what, table_name::text, column_name::text, data_type || is_nullable "
            "|| coalesce(column_default, '') FROM information_schema.columns WHERE table_schema = 'public' "
            "UNION ALL SELECT 'index', tablename, indexname, indexdef FROM pg_indexes "
            "WHERE schemaname = 'public' "
            "UNION ALL SELECT 'rule', conrelid::regclass::text, conname, pg_get_constraintdef(oid) "
            "FROM pg_constraint WHERE connamespace = 'public'::regnamespace "
            "UNION ALL SELECT 'function', proname, '', prosrc FROM pg_proc "
            "WHERE pronamespace = 'public'::regnamespace ORDER BY 1, 2, 3, 4"
        )

    def ledger(self) -> Schema:
        if self.rows("SELECT to_regclass('lastgood_schema')::text") == [(None,)]:
            return []
        return self.rows("SELECT version, compatible_from, digest FROM lastgood_schema ORDER BY version")

    def empty(self) -> None:
        self.execute("DROP SCHEMA public CASCADE")
        self.execute("CREATE SCHEMA public")


@pytest.fixture(scope="module")
def postgres_dsn(postgres_server: PostgresServer) -> Iterator[str]:
    postgres_server.create_database("migrations")
    yield postgres_server.dsn("migrations")
    postgres_server.drop_database("migrations")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return SqlitePlace(tmp_path / "lastgood.db")
    postgres = PostgresPlace(request.getfixturevalue("postgres_dsn"))
    postgres.empty()
    return postgres


def poisoned(steps: Steps, version: int, after: int) -> Steps:
    """These steps, with a death after so many statements of one of them."""
    return tuple(
        Migration(step.version, step.compatible_from, (*step.statements[:after], "SELECT death()"))
        if step.version == version
        else step
        for step in steps
    )


def test_a_new_database_has_every_step_in_its_ledger(place: Place) -> None:
    ours = migrations(place.dialect)
    place.upgrade((*ours, SECOND, THIRD))
    assert place.ledger() == [
        (step.version, step.compatible_from, step.digest) for step in (*ours, SECOND, THIRD)
    ]
    assert [row[:2] for row in place.ledger()[-2:]] == [(101, 1), (102, 101)]


def test_I19_migrating_once_more_changes_nothing(place: Place) -> None:
    steps = (*migrations(place.dialect), SECOND, THIRD)
    place.upgrade(steps)
    before = place.schema(), place.ledger()
    place.upgrade(steps)
    assert (place.schema(), place.ledger()) == before


def test_I30_going_step_by_step_reaches_the_same_end_and_keeps_the_rows(place: Place) -> None:
    ours = migrations(place.dialect)
    place.upgrade((*ours, SECOND, THIRD))
    whole = place.schema(), place.ledger()
    place.empty()
    for count in range(1, len(ours) + 1):
        place.upgrade(ours[:count])
    place.execute(INSERT)
    place.upgrade((*ours, SECOND))
    assert place.rows("SELECT id, colour FROM sessions") == [("s", "blue")]
    place.upgrade((*ours, SECOND, THIRD))
    assert place.rows("SELECT name FROM colours") == [("blue",)]
    assert (place.schema(), place.ledger()) == whole


def test_I19_dying_after_any_statement_leaves_nothing_half_done(place: Place) -> None:
    """Each step is all or nothing; the rerun reaches the same schema, whatever had been done."""
    steps = (*migrations(place.dialect), SECOND, THIRD)
    place.upgrade(steps)
    whole = place.schema(), place.ledger()
    place.empty()
    for number, step in enumerate(steps):
        before = place.schema(), place.ledger()
        for after in range(len(step.statements) + 1):
            with pytest.raises(Exception, match="death"):
                place.upgrade(poisoned(steps[: number + 1], step.version, after))
            assert (place.schema(), place.ledger()) == before, (step.version, after)
        place.upgrade(steps[: number + 1])
    assert (place.schema(), place.ledger()) == whole


def test_I19_dying_in_a_later_step_keeps_the_earlier_ones(place: Place) -> None:
    steps = (*migrations(place.dialect), SECOND, THIRD)
    with pytest.raises(Exception, match="death"):
        place.upgrade(poisoned(steps, THIRD.version, 1))
    assert place.ledger()[-1][:2] == (101, 1)
    place.upgrade(steps)
    assert place.ledger()[-1][:2] == (102, 101)


PROGRAM = """
import sys
from pathlib import Path
from lastgood.store.migrations import Migration, migrations
from lastgood.store.sqlite.database import open_database

path, after = Path(sys.argv[1]), int(sys.argv[2])

def stop():
    print("here", flush=True)
    sys.stdin.readline()
    return 0.0

first, *rest = migrations("sqlite")
statements = (*first.statements[:after], "SELECT clock()", *first.statements[after:])
open_database(path, clock=stop, steps=(Migration(first.version, first.compatible_from, statements), *rest))
"""


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 1.0])
def test_I19_a_migration_killed_in_the_middle_is_done_at_the_next_start(tmp_path: Path, share: float) -> None:
    steps = migrations("sqlite")
    clean = SqlitePlace(tmp_path / "clean.db")
    clean.upgrade(steps)
    killed = SqlitePlace(tmp_path / "killed.db")
    after = round(share * len(steps[0].statements))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(killed.path), str(after)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    process.kill()
    process.communicate()
    killed.upgrade(steps)
    assert killed.schema() == clean.schema()
    assert killed.ledger() == clean.ledger()
    assert killed.rows("PRAGMA integrity_check") == [("ok",)]


def test_I19_nodes_that_start_together_migrate_once(postgres_dsn: str) -> None:
    place = PostgresPlace(postgres_dsn)
    steps = (*migrations("postgres"), SECOND, THIRD)
    place.empty()
    place.upgrade(steps)
    whole = place.schema(), place.ledger()
    place.empty()

    async def together() -> None:
        stores = await asyncio.gather(*(open_postgres(postgres_dsn, steps=steps) for _ in range(6)))
        for store in stores:
            await store.close()

    asyncio.run(together())
    assert (place.schema(), place.ledger()) == whole


# --- the rules, without a database -------------------------------------------------------------------------


def recorded(applied: list[tuple[int, int]]) -> list[Applied]:
    return [Migration(version, compatible_from, ()).applied for version, compatible_from in applied]


ONE, TWO, THREE = Migration(1, 1, ()), Migration(2, 1, ()), Migration(3, 3, ())


@pytest.mark.parametrize(
    ("known", "applied", "left"),
    [
        ((ONE, TWO), [], (ONE, TWO)),
        ((ONE, TWO), [(1, 1)], (TWO,)),
        ((ONE, TWO), [(1, 1), (2, 1)], ()),
        ((ONE,), [(1, 1), (2, 1)], ()),  # newer, and we can serve it
        ((ONE, TWO), [(1, 1), (2, 1), (3, 2)], ()),
        ((), [], ()),
    ],
)
def test_what_is_still_to_be_applied(known: Steps, applied: list[tuple[int, int]], left: Steps) -> None:
    assert pending(known, recorded(applied)) == left


@pytest.mark.parametrize(
    ("known", "applied"),
    [((ONE, TWO), [(1, 1), (2, 1), (3, 3)]), ((ONE,), [(1, 1), (2, 1), (3, 3), (4, 1)])],
)
def test_I30_a_schema_that_we_would_misread_is_refused(known: Steps, applied: list[tuple[int, int]]) -> None:
    with pytest.raises(NewerDatabase, match="schema 3 or later"):
        pending(known, recorded(applied))


@pytest.mark.parametrize(
    "other",
    [
        Migration(1, 1, ("CREATE TABLE a (b TEXT, c TEXT)",)),
        Migration(1, 1, ("CREATE TABLE a (b TEXT)", "DROP TABLE a")),
        Migration(1, 0, ("CREATE TABLE a (b TEXT)",)),
    ],
)
def test_a_step_that_is_not_ours_is_refused_also_among_newer_ones(other: Migration) -> None:
    ours = Migration(1, 1, ("CREATE TABLE a (b TEXT)",))
    for applied in ([other.applied], [other.applied, TWO.applied], [Applied(1, 1, None)]):
        for refuse in (pending, refuse_older):
            with pytest.raises(SchemaMismatch, match="different development version"):
                refuse((ours,), applied)


def test_the_digest_of_a_step_is_of_what_it_does() -> None:
    """Comments and indents may be improved in place; what the database is told may not."""
    text = "-- compatible-from: 1\nCREATE TABLE a (b TEXT, c TEXT);"
    same = "-- words\n-- compatible-from: 1\nCREATE TABLE a (\n    b TEXT,  -- why\n    c TEXT);\n"
    assert migration(1, text).digest == migration(1, same.replace("(\n    b", "(b")).digest
    assert migration(1, text).digest != migration(1, text.replace("c TEXT", "c BLOB")).digest


def test_a_migration_says_what_it_is_compatible_with() -> None:
    text = "-- compatible-from: 4\n-- words\nCREATE TABLE a (b TEXT); -- a; b\nDROP TABLE a;\n"
    assert migration(5, text) == Migration(5, 4, ("CREATE TABLE a (b TEXT)", "DROP TABLE a"))
    with pytest.raises(ValueError, match="compatible"):
        migration(5, "CREATE TABLE a (b TEXT);")


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_migrations_are_numbered_without_a_gap(dialect: str) -> None:
    steps = migrations(dialect)
    assert [step.version for step in steps] == list(range(1, len(steps) + 1))
    assert all(step.compatible_from <= step.version and step.statements for step in steps)


def test_both_databases_have_the_same_tables(tmp_path: Path, postgres_dsn: str) -> None:
    """rows.py maps both by the same column lists."""
    sqlite, postgres = SqlitePlace(tmp_path / "lastgood.db"), PostgresPlace(postgres_dsn)
    postgres.empty()
    sqlite.upgrade(migrations("sqlite"))
    postgres.upgrade(migrations("postgres"))
    columns = sqlite.rows(
        "SELECT tables.name, columns.name "
        "FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns "
        "WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite_%'"
    )
    assert set(columns) == {
        (table, column) for what, table, column, _ in postgres.schema() if what == "column"
    }
