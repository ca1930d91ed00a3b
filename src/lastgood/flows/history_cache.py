"""Decoded histories, kept under their head turn. Turns never change, so what is kept cannot be stale.

A history is verified when it is read from the store, and trusted while it is kept.
"""

from __future__ import annotations

from collections import OrderedDict

from lastgood.core.history import History, building_history
from lastgood.flows.verified_history import read_chain
from lastgood.model.ids import TenantId, TurnId
from lastgood.model.sessions import Head, Turn
from lastgood.ports.sessions import TurnStore
from lastgood.time_slices import paced

#: Of the bodies they were decoded from; what they weigh in memory is a small multiple of it.
MOST_BYTES = 64 * 1024 * 1024


class HistoryCache:
    """An LRU cache, limited in number and in total size. A miss costs a read."""

    def __init__(self, store: TurnStore, most: int = 1000, most_bytes: int = MOST_BYTES) -> None:
        self._store = store
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[TurnId, History] = OrderedDict()
        self._bytes = 0
        # The turns themselves, for conversations whose clients resend them.
        self._chains: OrderedDict[TurnId, tuple[Turn, ...]] = OrderedDict()
        self._chain_bytes = 0

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

    async def turns(self, tenant: TenantId, head: Head) -> tuple[Turn, ...]:
        """The turns up to `head`, to be compared with what a client resends. HistoryDamaged: they are not
        as they were committed."""
        kept = self._chains.get(head.turn)
        if kept is not None and kept[-1].head == head:
            self._chains.move_to_end(head.turn)
            return kept
        turns = (await read_chain(self._store, tenant, head)).checked()
        self._keep_chain(turns)
        return turns

    def grow(self, history: History, turn: Turn) -> None:
        """After a commit: the next turn starts from here without reading anything."""
        if history.head is not None:
            self._forget(history.head.turn)
            self._grow_chain(history.head, turn)
        self._keep(history.then(turn))

    def follow(self, base: Head | None, turn: Turn) -> None:
        """After a commit by a caller that has not read the history: extends what is cached."""
        if base is None:
            self._keep_chain((turn,))
            return
        history = self._kept.get(base.turn)
        if history is not None and history.head == base:
            self._forget(base.turn)
            self._keep(history.then(turn))
        self._grow_chain(base, turn)

    def _grow_chain(self, base: Head, turn: Turn) -> None:
        chain = self._forget_chain(base.turn)
        if chain and chain[-1].head == base:
            self._keep_chain((*chain, turn))

    def _keep_chain(self, turns: tuple[Turn, ...]) -> None:
        self._forget_chain(turns[-1].id)
        self._chains[turns[-1].id] = turns
        self._chain_bytes += _size(turns)
        while self._chains and (len(self._chains) > self._most or self._chain_bytes > self._most_bytes):
            self._forget_chain(next(iter(self._chains)))

    def _forget_chain(self, head: TurnId) -> tuple[Turn, ...]:
        gone = self._chains.pop(head, ())
        self._chain_bytes -= _size(gone)
        return gone

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


def _size(turns: tuple[Turn, ...]) -> int:
    return sum(len(turn.body) for turn in turns)
