"""The notes of one agent in one tenant, as its tools have them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lastgood.core.agent_identity import stable_identity
from lastgood.model.agents import AgentSpec
from lastgood.model.ids import TenantId
from lastgood.model.notes import Note, NoteAdded
from lastgood.ports.notes import NoteStore

T = TypeVar("T")


class Through(Protocol):
    def __call__(self, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Makes a call of the store, and waits while the store is unavailable."""
        ...


@dataclass(frozen=True, slots=True)
class AgentNotes:
    """Neither a tool nor its file chooses the tenant or the agent. `agent` is what the agent is whatever the
    query of its URL, which changes with every version of it."""

    store: NoteStore
    tenant: TenantId
    agent: str
    through: Through

    @classmethod
    def of(cls, store: NoteStore, tenant: TenantId, agent: AgentSpec, through: Through) -> AgentNotes:
        return cls(store, tenant, stable_identity(agent.key), through)

    async def list(self, space: str) -> Sequence[Note]:
        return await self.through(lambda: self.store.list_notes(self.tenant, self.agent, space))

    async def find(self, space: str, id: str) -> Note | None:
        return await self.through(lambda: self.store.find_note(self.tenant, self.agent, space, id))

    async def add(self, space: str, id: str, body: str, most: int) -> NoteAdded:
        return await self.through(lambda: self.store.add_note(self.tenant, self.agent, space, id, body, most))

    async def replace(self, space: str, id: str, body: str, revision: int | None = None) -> int | None:
        return await self.through(
            lambda: self.store.replace_note(self.tenant, self.agent, space, id, body, revision)
        )

    async def delete(self, space: str, id: str, revision: int | None = None) -> bool:
        return await self.through(
            lambda: self.store.delete_note(self.tenant, self.agent, space, id, revision)
        )


async def at_once(work: Callable[[], Awaitable[T]]) -> T:
    """For runs that do not wait for the store."""
    return await work()
