"""The protocols of an import: the source system, and the store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from lastgood.model.imports import ImportedScope, NewPointer
from lastgood.model.multica import (
    MulticaAgent,
    MulticaChat,
    MulticaIssue,
    MulticaMessage,
    MulticaRuntime,
    MulticaTask,
)
from lastgood.model.sessions import Head, NewSession, Turn


class MulticaSource(Protocol):
    """One moment of a multica database."""

    async def agents(self) -> Sequence[MulticaAgent]: ...

    async def runtimes(self) -> Mapping[str, MulticaRuntime]: ...

    def chats(self, agent: str) -> AsyncGenerator[MulticaChat, None]: ...

    def issues(self, agent: str) -> AsyncGenerator[MulticaIssue, None]: ...

    def messages(self, chat: str) -> AsyncGenerator[MulticaMessage, None]:
        """In the order in which they were said."""
        ...

    async def tasks(
        self, agent: str, *, chat: str | None = None, issue: str | None = None
    ) -> Sequence[MulticaTask]:
        """In the order in which they finished."""
        ...


class ImportStore(Protocol):
    async def import_into_scope(
        self, new: NewSession, base: Head | None, turns: Sequence[Turn], pointers: Sequence[NewPointer]
    ) -> ImportedScope | None:
        """Appends to the session of the scope and agent of `new`, which is made if it does not exist, in one
        transaction. A pointer whose attempt has one already is left as it is.

        None: turns were to be appended, and the head is not `base` or somebody holds the session; then
        nothing was written.
        """
        ...
