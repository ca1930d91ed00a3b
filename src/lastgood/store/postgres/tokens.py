"""Tokens on PostgreSQL."""

from __future__ import annotations

from lastgood.model.tokens import Token
from lastgood.store.postgres.database import PostgresDatabase
from lastgood.store.token_rows import of_token, to_token


class PostgresTokens:
    db: PostgresDatabase

    async def create_token(self, token: Token, hash: bytes) -> Token:
        return to_token((await self.db.write("create_token", of_token(token, hash)))[0])

    async def find_token(self, hash: bytes) -> Token | None:
        row = await self.db.row("find_token", {"hash": hash})
        return to_token(row) if row else None

    async def list_tokens(self) -> tuple[Token, ...]:
        return tuple(map(to_token, await self.db.rows("list_tokens", {})))

    async def revoke_token(self, id: str) -> Token | None:
        rows = await self.db.write("revoke_token", {"id": id})
        return to_token(rows[0]) if rows else None
