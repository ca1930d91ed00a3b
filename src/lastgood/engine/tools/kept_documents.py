"""Documents that say which tools a toolset has: requested when an agent first runs, and when they are old.

They are kept for all sessions whose files ask for them in the same way.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import orjson

from lastgood.model.agents import ToolsetSpec

FRESH_SECONDS = 600.0
RETRY_SECONDS = 60.0
_MOST_DOCUMENTS = 64


class Document(Protocol):
    @property
    def problem(self) -> str:
        """Why it could not be had the last time; empty: it could."""
        ...


D = TypeVar("D", bound=Document)


@dataclass(slots=True)
class _Kept(Generic[D]):
    document: D
    asked_at: float | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class KeptDocuments(Generic[D]):
    def __init__(self, empty: D, clock: Callable[[], float]) -> None:
        self._empty, self._clock = empty, clock
        self._kept: OrderedDict[bytes, _Kept[D]] = OrderedDict()

    async def get(self, spec: ToolsetSpec, ask: Callable[[D], Awaitable[D]]) -> D:
        """`ask` gets the last version: if there is no newer one, that one serves."""
        said = [spec.trusted, dict(spec.options)]
        key = orjson.dumps(said, option=orjson.OPT_SORT_KEYS)
        kept = self._kept.setdefault(key, _Kept(self._empty))
        self._kept.move_to_end(key)
        while len(self._kept) > _MOST_DOCUMENTS:
            self._kept.popitem(last=False)
        async with kept.asking:
            age = None if kept.asked_at is None else self._clock() - kept.asked_at
            if age is None or age >= (RETRY_SECONDS if kept.document.problem else FRESH_SECONDS):
                kept.document = await ask(kept.document)
                kept.asked_at = self._clock()
        return kept.document
