"""Sessions that come from another system, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.model.ids import TenantId
from lastgood.model.imports import ImportedScope, NewPointer
from lastgood.model.sessions import Head, NewSession, Session, TaskScope, Turn
from lastgood.store.import_rows import of_append, of_appended, of_new_pointer, of_scope
from lastgood.store.postgres.database import PostgresDatabase
from lastgood.store.session_rows import of_new_session, to_session


class PostgresImports:
    db: PostgresDatabase

    async def find_scope(self, tenant: TenantId, scope: TaskScope, agent_key: str) -> Session | None:
        row = await self.db.row("find_scope", of_scope(tenant, scope, agent_key))
        return to_session(row) if row else None

    async def import_into_scope(
        self, new: NewSession, base: Head | None, turns: Sequence[Turn], pointers: Sequence[NewPointer]
    ) -> ImportedScope | None:
        assert new.scope is not None
        where = of_scope(new.tenant, new.scope, new.agent_key)
        async with self.db.transaction() as transaction:
            if base is None:
                await transaction.row("create_in_scope", of_new_session(new))
            row = await transaction.row("find_scope", where)
            if row is None:
                return None  # deleted since its head was read
            session = to_session(row)
            if turns:
                moved = await transaction.row("append_imported", of_append(new, session.id, base, turns))
                if moved is None:
                    return None  # not one that was made just now: that one is free and has no head
                for turn in turns:
                    await transaction.row("insert_turn", of_appended(new, session.id, moved[0], turn))
            added = 0
            for pointer in pointers:
                added += bool(
                    await transaction.row("import_pointer", of_new_pointer(new, session.id, pointer))
                )
            row = await transaction.row("find_scope", where)
            assert row is not None
        return ImportedScope(to_session(row), added)

    async def list_pointers(self, tenant, session):  # TEMPORARY
        from lastgood.model.tasks import Pointer, PointerOutcome
        from lastgood.model.runtimes import RuntimeIdentity

        rows = await self.db.rows("tmp_pointers", {"tenant": tenant, "session": session})
        return tuple(
            Pointer(
                r[0],
                r[1],
                r[2],
                r[3],
                RuntimeIdentity(r[4], r[5], r[6], r[7], r[8]) if r[4] else None,
                r[9],
                r[5],
                None,
                r[10],
                PointerOutcome(r[11]),
                r[12],
                bool(r[13]),
                r[14],
            )
            for r in rows
        )
