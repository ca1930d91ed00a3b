"""Notes of agents, on either database."""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.model.ids import TenantId
from lastgood.model.notes import Note, NoteAdded
from lastgood.store.work_access import Statements, WorkTransactions, first


class SqlNotes(WorkTransactions):
    async def list_notes(self, tenant: TenantId, agent: str, space: str) -> Sequence[Note]:
        rows = await self._rows_aside("list_notes", {"tenant": tenant, "agent": agent, "space": space})
        return tuple(Note(*row) for row in rows)

    async def find_note(self, tenant: TenantId, agent: str, space: str, id: str) -> Note | None:
        row = await self._row("find_note", {"tenant": tenant, "agent": agent, "space": space, "id": id})
        return None if row is None else Note(*row)

    async def add_note(
        self, tenant: TenantId, agent: str, space: str, id: str, body: str, most: int
    ) -> NoteAdded:
        new = {"tenant": tenant, "agent": agent, "space": space, "id": id, "body": body}

        async def work(statements: Statements) -> NoteAdded:
            if await statements.rows("insert_note_if_room", {**new, "most": most}):
                return NoteAdded.ADDED
            which = {name: value for name, value in new.items() if name != "body"}
            there = await first(statements, "find_note", which)
            return NoteAdded.FULL if there is None else NoteAdded.EXISTS

        return await self._transact(work)

    async def replace_note(
        self, tenant: TenantId, agent: str, space: str, id: str, body: str, revision: int | None
    ) -> int | None:
        which = {"tenant": tenant, "agent": agent, "space": space, "id": id, "revision": revision}
        rows = await self._write("replace_note_if", {**which, "body": body})
        return int(rows[0][0]) if rows else None

    async def delete_note(
        self, tenant: TenantId, agent: str, space: str, id: str, revision: int | None
    ) -> bool:
        which = {"tenant": tenant, "agent": agent, "space": space, "id": id, "revision": revision}
        return bool(await self._write("delete_note_if", which))
