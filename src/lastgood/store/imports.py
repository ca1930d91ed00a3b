"""Sessions that come from another system, on either database."""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.model.imports import ImportedScope, NewPointer
from lastgood.model.sessions import Head, NewSession, Turn
from lastgood.store.import_rows import of_append, of_appended, of_new_pointer
from lastgood.store.session_rows import of_new_session, to_session
from lastgood.store.work_access import Statements, WorkTransactions, first


class SqlImports(WorkTransactions):
    async def import_into_scope(
        self, new: NewSession, base: Head | None, turns: Sequence[Turn], pointers: Sequence[NewPointer]
    ) -> ImportedScope | None:
        where = of_new_session(new)

        async def work(statements: Statements) -> ImportedScope | None:
            if base is None:
                await statements.rows("create_for_scope", where)
            row = await first(statements, "session_of_scope", where)
            if row is None:
                return None  # deleted since its head was read
            session = to_session(row).id
            if turns:
                moved = await first(statements, "append_imported", of_append(new, session, base, turns))
                if moved is None:
                    return None  # not one that was made just now: that one is free and has no head
                for turn in turns:
                    await statements.rows("insert_turn", of_appended(new, session, moved[0], turn))
            added = 0
            for pointer in pointers:
                added += len(await statements.rows("import_pointer", of_new_pointer(new, session, pointer)))
            row = await first(statements, "session_of_scope", where)
            assert row is not None
            return ImportedScope(to_session(row), added)

        return await self._transact(work)
