"""How the statements of work on runtimes reach a database.

Their transactions are several statements with decisions in between, and the same on both databases; so they
are written once. Each is a coroutine over named statements. On SQLite nothing in it ever waits, and it runs
from beginning to end inside the writer's transaction; it may be run twice, so it must not keep anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from lastgood.model.attempts import Hold
from lastgood.model.events import Event
from lastgood.model.ids import SessionId
from lastgood.store.rows import Row, of_hold

T = TypeVar("T")


class ClaimLost(Exception):
    """Rolls a transaction back: the claim is not the task's current one."""


class Statements(Protocol):
    """A transaction, or one moment of the database."""

    async def rows(self, name: str, parameters: Mapping[str, Any]) -> list[Row]: ...

    async def insert_events(self, session: SessionId, last: int, events: Sequence[Event]) -> None:
        """Numbers end at `last`: the session's counter was moved past them just before."""
        ...


Work = Callable[[Statements], Coroutine[Any, Any, T]]


class WorkTransactions(ABC):
    @abstractmethod
    async def _transact(self, work: Work[T], *, durable: bool = True) -> T:
        """One transaction. What `work` raises rolls it back."""

    @abstractmethod
    async def _look(self, work: Work[T]) -> T:
        """Reads of one moment."""

    @abstractmethod
    async def _rows(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        """One read."""

    @abstractmethod
    async def _rows_aside(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        """One read that may be long, off the event loop."""

    async def _row(self, name: str, parameters: Mapping[str, Any]) -> Row | None:
        return next(iter(await self._rows(name, parameters)), None)

    async def _write(self, name: str, parameters: Mapping[str, Any]) -> list[Row]:
        """One statement; no rows: its condition did not hold."""
        return await self._transact(lambda statements: _rows_of(statements, name, parameters))

    async def _unless_lost(self, work: Work[T], otherwise: T, *, durable: bool = True) -> T:
        """`otherwise`: it found the claim lost when it had written something already; that was undone."""
        try:
            return await self._transact(work, durable=durable)
        except ClaimLost:
            return otherwise


async def _rows_of(statements: Statements, name: str, parameters: Mapping[str, Any]) -> list[Row]:
    return await statements.rows(name, parameters)


async def first(statements: Statements, name: str, parameters: Mapping[str, Any]) -> Row | None:
    return next(iter(await statements.rows(name, parameters)), None)


async def append_if_held(statements: Statements, hold: Hold, events: Sequence[Event]) -> bool:
    """Locks the session and stores events of its attempt. False: the hold is gone, nothing was stored."""
    row = await first(statements, "touch_if_held", of_hold(hold) | {"events": len(events), "batch": None})
    if row is None:
        return False
    await statements.insert_events(hold.session, row[0], events)
    return True


def run_to_end(work: Awaitable[T]) -> T:
    """Runs a coroutine that waits for nothing."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a transaction on SQLite must not wait")
