"""Sessions that come from another system, on SQLite."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from lastgood.model.ids import TenantId
from lastgood.model.imports import ImportedScope, NewPointer
from lastgood.model.sessions import Head, NewSession, Session, TaskScope, Turn
from lastgood.store.import_rows import of_append, of_appended, of_new_pointer, of_scope
from lastgood.store.session_rows import of_new_session, to_session
from lastgood.store.sqlite.database import SqliteDatabase


class SqliteImports:
    db: SqliteDatabase

    async def find_scope(self, tenant: TenantId, scope: TaskScope, agent_key: str) -> Session | None:
        row = self.db.row("find_scope", of_scope(tenant, scope, agent_key))
        return to_session(row) if row else None

    async def import_into_scope(
        self, new: NewSession, base: Head | None, turns: Sequence[Turn], pointers: Sequence[NewPointer]
    ) -> ImportedScope | None:
        assert new.scope is not None
        where = of_scope(new.tenant, new.scope, new.agent_key)
        sql = self.db.sql

        def work(connection: apsw.Connection) -> ImportedScope | None:
            if base is None:
                connection.execute(sql["create_in_scope"], of_new_session(new)).fetchall()
            found = connection.execute(sql["find_scope"], where).fetchall()
            if not found:
                return None  # deleted since its head was read
            session = to_session(found[0])
            if turns:
                appended = of_append(new, session.id, base, turns)
                moved = connection.execute(sql["append_imported"], appended).fetchall()
                if not moved:
                    return None  # not one that was made just now: that one is free and has no head
                for turn in turns:
                    connection.execute(
                        sql["insert_turn"], of_appended(new, session.id, str(moved[0][0]), turn)
                    )
            added = 0
            for pointer in pointers:
                row = of_new_pointer(new, session.id, pointer)
                added += len(connection.execute(sql["import_pointer"], row).fetchall())
            return ImportedScope(
                to_session(connection.execute(sql["find_scope"], where).fetchall()[0]), added
            )

        return await self.db.write(work, long=True)

    async def list_pointers(self, tenant, session):  # TEMPORARY
        from lastgood.model.tasks import Pointer, PointerOutcome
        from lastgood.model.runtimes import RuntimeIdentity

        rows = self.db.rows("tmp_pointers", {"tenant": tenant, "session": session})
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
