"""Decoded histories, kept under their head turn. Turns never change, so what is kept cannot be stale.

A history is verified when it is read from the store, and trusted while it is kept.
"""

from __future__ import annotations

from collections import OrderedDict

from lastgood.core.history import History, building_history
from lastgood.flows.chains import read_chain
from lastgood.model.ids import TenantId, TurnId
from lastgood.model.sessions import Head, Turn
from lastgood.pacing import paced
from lastgood.ports import TurnStore

#: Of the bodies they were decoded from; what they weigh in memory is a small multiple of it.
MOST_BYTES = 64 * 1024 * 1024


class Histories:
    """Keeps those used last: so many, and not too large together. Losing one costs a read, no more."""

    def __init__(self, store: TurnStore, most: int = 1000, most_bytes: int = MOST_BYTES) -> None:
        self._store = store
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[TurnId, History] = OrderedDict()
        self._bytes = 0

    async def at(self, tenant: TenantId, head: Head | None) -> History:
        """HistoryDamaged: it is not as it was committed."""
        if head is None:
            return History()
        kept = self._kept.get(head.turn)
        if kept is not None and kept.head == head:
            self._kept.move_to_end(head.turn)
            return kept
        chain = await read_chain(self._store, tenant, head)
        return self._keep(await paced(building_history(chain.checked())))

    def grow(self, history: History, turn: Turn) -> None:
        """After a commit: the next turn starts from here without reading anything."""
        if history.head is not None:
            self._forget(history.head.turn)
        self._keep(history.then(turn))

    def _keep(self, history: History) -> History:
        assert history.head is not None
        self._forget(history.head.turn)
        self._kept[history.head.turn] = history
        self._bytes += history.size
        while self._kept and (len(self._kept) > self._most or self._bytes > self._most_bytes):
            self._forget(next(iter(self._kept)))
        return history

    def _forget(self, head: TurnId) -> None:
        gone = self._kept.pop(head, None)
        if gone is not None:
            self._bytes -= gone.size
