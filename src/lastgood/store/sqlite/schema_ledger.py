"""The table of applied migrations in a SQLite file: reads it, and applies what is missing."""

from __future__ import annotations

import apsw

from lastgood.errors import DatabaseDamaged
from lastgood.store.migrations import LEDGER, Applied, Migration, pending
from lastgood.store.sqlite.writer import translate


def applied(connection: apsw.Connection) -> list[Applied]:
    try:
        return _read_ledger(connection)
    except (apsw.Error, UnicodeDecodeError) as error:
        raise translate(error) from error
    except (TypeError, ValueError) as error:
        raise DatabaseDamaged(
            f"Database file is damaged: its schema table cannot be read ({error}); it was not changed. "
            "Restore a backup"
        ) from error


def _read_ledger(connection: apsw.Connection) -> list[Applied]:
    columns = {
        name for (name,) in connection.execute("SELECT name FROM pragma_table_info('lastgood_schema')")
    }
    if not columns:
        return []
    digest = "digest" if "digest" in columns else "NULL"
    rows = connection.execute(f"SELECT version, compatible_from, {digest} FROM lastgood_schema")
    return [Applied(int(version), int(compatible_from), digest) for version, compatible_from, digest in rows]


def upgrade(connection: apsw.Connection, steps: tuple[Migration, ...]) -> None:
    for step in pending(steps, applied(connection)):
        with connection:  # a savepoint: all of a migration and its record, or nothing
            connection.execute(LEDGER)
            for statement in step.statements:
                connection.execute(statement)
            connection.execute(
                "INSERT INTO lastgood_schema VALUES (?, ?, ?)",
                (step.version, step.compatible_from, step.digest),
            )
