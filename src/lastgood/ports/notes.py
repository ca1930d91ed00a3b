"""The seam to notes: what agents keep beyond their sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lastgood.model.ids import TenantId
from lastgood.model.notes import Note, NoteAdded


class NoteStore(Protocol):
    """`agent` is the key of the agent, `space` one of its collections."""

    async def list_notes(self, tenant: TenantId, agent: str, space: str) -> Sequence[Note]:
        """Oldest first."""
        ...

    async def find_note(self, tenant: TenantId, agent: str, space: str, id: str) -> Note | None: ...

    async def add_note(
        self, tenant: TenantId, agent: str, space: str, id: str, body: str, most: int
    ) -> NoteAdded: ...

    async def replace_note(
        self, tenant: TenantId, agent: str, space: str, id: str, body: str, revision: int | None
    ) -> int | None:
        """Returns the new revision. None: there is no such note, or it does not have this revision."""
        ...

    async def delete_note(
        self, tenant: TenantId, agent: str, space: str, id: str, revision: int | None
    ) -> bool:
        """False: there is no such note, or it does not have this revision."""
        ...


class Notes(Protocol):
    """The notes of one agent in one tenant."""

    async def list(self, space: str) -> Sequence[Note]: ...
    async def find(self, space: str, id: str) -> Note | None: ...
    async def add(self, space: str, id: str, body: str, most: int) -> NoteAdded: ...
    async def replace(self, space: str, id: str, body: str, revision: int | None = None) -> int | None: ...
    async def delete(self, space: str, id: str, revision: int | None = None) -> bool: ...
