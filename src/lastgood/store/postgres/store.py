"""The whole store: one file per noun, put together here."""

from __future__ import annotations

from lastgood.store.migrate import Migration
from lastgood.store.postgres.attempts import PostgresAttempts
from lastgood.store.postgres.database import POOL_SIZE, Database, open_database
from lastgood.store.postgres.events import PostgresEvents
from lastgood.store.postgres.sessions import PostgresSessions, PostgresTurns


class PostgresStore(PostgresSessions, PostgresTurns, PostgresAttempts, PostgresEvents):
    #: Other nodes may hold what is found running; only an expired lease says that they do not.
    alone = False

    def __init__(self, db: Database) -> None:
        self.db = db

    async def close(self) -> None:
        await self.db.close()


async def open_postgres(
    dsn: str, *, pool_size: int = POOL_SIZE, steps: tuple[Migration, ...] | None = None
) -> PostgresStore:
    return PostgresStore(await open_database(dsn, pool_size=pool_size, steps=steps))
