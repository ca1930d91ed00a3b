"""Both stores, opened the way a real process opens them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lastgood.ports import Store
from lastgood.store.postgres import open_postgres
from lastgood.store.sqlite import open_sqlite


@dataclass(frozen=True, slots=True)
class Place:
    """Where a store is: a SQLite file or a PostgreSQL database."""

    kind: str
    where: str

    async def open(self) -> Store:
        if self.kind == "sqlite":
            return open_sqlite(Path(self.where))
        return await open_postgres(self.where, pool_size=3)
