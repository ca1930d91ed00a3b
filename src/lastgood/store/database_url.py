"""Opens the store that a database URL names: `sqlite:///PATH` or `postgresql://…`.

As in other database URLs, `sqlite:///x.db` is in the current directory and `sqlite:////x.db` is not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from lastgood.errors import InvalidRequest, StoreLocked, WrongUsage
from lastgood.ports import Store, TokenStore
from lastgood.ports.webhooks import WebhookStore
from lastgood.store.sqlite import AdministrationBeside, open_sqlite
from lastgood.store.sqlite.database import schema_of


class Administration(TokenStore, WebhookStore, Protocol):
    """What a server reads again each time, so that a command may change it meanwhile."""


def sqlite_path(database: str) -> Path | None:
    """Returns the file of a SQLite database, or None for another kind of database."""
    scheme, _, rest = database.partition("://")
    if scheme != "sqlite":
        return None
    if not rest or rest.endswith((":memory:", "/")):
        raise WrongUsage(f"database {database!r} names no file; use sqlite:///PATH")
    return Path(rest.removeprefix("/"))


async def open_store(
    database: str, *, read_only: bool = False, migrate: str = "auto", address: str = ""
) -> Store:
    """`migrate` is the setting: `auto` or `check`. `address`: of the server that opens it, for the error that
    others get who cannot open it meanwhile."""
    may_migrate = migrate == "auto"
    path = sqlite_path(database)
    if path is not None:
        if not read_only and may_migrate:
            make_folder(path.parent)
        return open_sqlite(path, read_only=read_only, migrate=may_migrate, address=address)
    if database.startswith(("postgresql://", "postgres://")):
        from lastgood.store.postgres import open_postgres  # asyncpg only where it is used

        return await open_postgres(database, read_only=read_only, migrate=may_migrate)
    raise WrongUsage(f"unsupported database {database!r}; use sqlite:///PATH or postgresql://…")


async def upgrade_database(database: str) -> tuple[int, int]:
    """Applies what migrations are missing. Returns the version of the schema before and after."""
    before = await _schema_of(database)
    store = await open_store(database)
    await store.close()
    return before, await _schema_of(database)


async def _schema_of(database: str) -> int:
    path = sqlite_path(database)
    if path is not None:
        return schema_of(path)
    from lastgood.store.postgres.database import (
        schema_of as schema_of_server,
    )  # asyncpg only where it is used

    return await schema_of_server(database)


@asynccontextmanager
async def open_administration(database: str, migrate: str) -> AsyncIterator[Administration]:
    """Opens tokens and webhooks for changes, also while a server uses the database."""
    store: Store | AdministrationBeside
    try:
        store = await open_store(database, migrate=migrate)
    except StoreLocked:
        path = sqlite_path(database)
        assert path is not None
        store = AdministrationBeside(path)
    try:
        yield store
    finally:
        await store.close()


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(
            f"cannot create the directory {folder}: {error.strerror}; choose another --data-dir"
        ) from error
