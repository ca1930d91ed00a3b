"""Tokens on SQLite."""

from __future__ import annotations

import apsw

from lastgood.model.tokens import Token
from lastgood.store.sqlite.database import SqliteDatabase
from lastgood.store.token_rows import of_token, to_token


class SqliteTokens:
    db: SqliteDatabase

    async def create_token(self, token: Token, hash: bytes) -> Token:
        def work(connection: apsw.Connection) -> Token:
            return to_token(
                connection.execute(self.db.sql["create_token"], of_token(token, hash)).fetchall()[0]
            )

        return await self.db.write(work)

    async def find_token(self, hash: bytes) -> Token | None:
        row = self.db.row("find_token", {"hash": hash})
        return to_token(row) if row else None

    async def list_tokens(self) -> tuple[Token, ...]:
        return tuple(map(to_token, self.db.rows("list_tokens", {})))

    async def revoke_token(self, id: str) -> Token | None:
        def work(connection: apsw.Connection) -> Token | None:
            rows = connection.execute(self.db.sql["revoke_token"], {"id": id}).fetchall()
            return to_token(rows[0]) if rows else None

        return await self.db.write(work)
