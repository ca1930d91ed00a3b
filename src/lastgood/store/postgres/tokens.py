"""Tokens on PostgreSQL."""

from __future__ import annotations

from typing import Any

from lastgood.model.audit import AuditEntry
from lastgood.model.ids import TenantId
from lastgood.model.tokens import Token
from lastgood.store.audit import of_audit
from lastgood.store.postgres.database import PostgresDatabase
from lastgood.store.token_rows import of_token, to_token


class PostgresTokens:
    db: PostgresDatabase

    async def create_token(self, token: Token, hash: bytes, audit: AuditEntry | None = None) -> Token:
        found = await self._change_token("create_token", of_token(token, hash), audit)
        assert found is not None, "an insert returns its row"
        return found

    async def _change_token(
        self, name: str, parameters: dict[str, Any], audit: AuditEntry | None
    ) -> Token | None:
        async with self.db.transaction() as transaction:
            row = await transaction.row(name, parameters)
            if row is not None and audit is not None:
                await transaction.row("insert_audit", of_audit(audit))
        return to_token(row) if row else None

    async def find_token(self, hash: bytes) -> Token | None:
        row = await self.db.row("find_token", {"hash": hash})
        return to_token(row) if row else None

    async def bind_token(self, id: str, worker: str) -> Token | None:
        return await self._change_token("bind_token", {"id": id, "worker": worker}, None)

    async def get_token(self, tenant: TenantId, id: str) -> Token | None:
        row = await self.db.row("get_token", {"tenant": tenant, "id": id})
        return to_token(row) if row else None

    async def list_tokens(self) -> tuple[Token, ...]:
        return tuple(map(to_token, await self.db.rows("list_tokens", {})))

    async def revoke_token(self, id: str, audit: AuditEntry | None = None) -> Token | None:
        return await self._change_token("revoke_token", {"id": id}, audit)
