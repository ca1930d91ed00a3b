"""Tokens on SQLite."""

from __future__ import annotations

import apsw

from lastgood.model.audit import AuditEntry
from lastgood.model.ids import TenantId
from lastgood.model.tokens import Token
from lastgood.store.audit import of_audit
from lastgood.store.sqlite.database import SqliteDatabase
from lastgood.store.token_rows import of_token, to_token


class SqliteTokens:
    db: SqliteDatabase

    async def create_token(self, token: Token, hash: bytes, audit: AuditEntry | None = None) -> Token:
        def work(connection: apsw.Connection) -> Token:
            rows = connection.execute(self.db.sql["create_token"], of_token(token, hash)).fetchall()
            self._record(connection, audit)
            return to_token(rows[0])

        return await self.db.write(work)

    async def find_token(self, hash: bytes) -> Token | None:
        row = self.db.row("find_token", {"hash": hash})
        return to_token(row) if row else None

    async def bind_token(self, id: str, worker: str) -> Token | None:
        def work(connection: apsw.Connection) -> Token | None:
            rows = connection.execute(self.db.sql["bind_token"], {"id": id, "worker": worker}).fetchall()
            return to_token(rows[0]) if rows else None

        return await self.db.write(work)

    async def get_token(self, tenant: TenantId, id: str) -> Token | None:
        row = self.db.row("get_token", {"tenant": tenant, "id": id})
        return to_token(row) if row else None

    async def list_tokens(self) -> tuple[Token, ...]:
        return tuple(map(to_token, self.db.rows("list_tokens", {})))

    async def revoke_token(self, id: str, audit: AuditEntry | None = None) -> Token | None:
        def work(connection: apsw.Connection) -> Token | None:
            rows = connection.execute(self.db.sql["revoke_token"], {"id": id}).fetchall()
            if rows:
                self._record(connection, audit)
            return to_token(rows[0]) if rows else None

        return await self.db.write(work)

    def _record(self, connection: apsw.Connection, audit: AuditEntry | None) -> None:
        if audit is not None:
            connection.execute(self.db.sql["insert_audit"], of_audit(audit)).fetchall()
