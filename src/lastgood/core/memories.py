"""Decides what a memory is and which memories a search finds.

An id comes from the call that stores it and from its text: the same call, made again after its outcome was
lost, stores the memory once, and another text never replaces what was stored.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

MOST_MEMORIES = 1000
MEMORY_CHARACTERS = 8192
CATEGORY_CHARACTERS = 100
#: Of the words of a search: each of them is searched for in each memory.
QUERY_CHARACTERS = 1000

_ID = re.compile(r"mem_[0-9a-f]{16}\Z")


@dataclass(frozen=True, slots=True)
class Memory:
    id: str
    text: str
    category: str = ""
    created_at: float = 0.0


def memory_id(key: str, text: str, category: str) -> str:
    """`key`: the stable key of the call."""
    digest = hashlib.sha256()
    for part in (key, text, category):
        digest.update(len(part.encode()).to_bytes(8))
        digest.update(part.encode())
    return f"mem_{digest.hexdigest()[:16]}"


def is_memory_id(text: str) -> bool:
    return _ID.match(text) is not None


def why_not_searched(query: str) -> str | None:
    if len(query) <= QUERY_CHARACTERS:
        return None
    return f"`query` has {len(query):,} characters; the limit is {QUERY_CHARACTERS:,}"


def why_not_stored(text: str, category: str) -> str | None:
    if not text.strip():
        return "`memory` is empty"
    if "\x00" in text or "\x00" in category:
        return "a memory cannot contain a NUL character"
    for name, value, most in (
        ("memory", text, MEMORY_CHARACTERS),
        ("category", category, CATEGORY_CHARACTERS),
    ):
        if len(value) > most:
            return f"`{name}` has {len(value):,} characters; the limit is {most:,}"
    return None


def search(memories: Iterable[Memory], query: str, category: str) -> tuple[Memory, ...]:
    """Those that contain every word of the query, and are of the category if one is given; in any case."""
    words = frozenset(query.casefold().split())
    wanted = category.strip().casefold()
    return tuple(
        memory
        for memory in memories
        if (not wanted or memory.category.casefold() == wanted) and _has_all(memory.text.casefold(), words)
    )


def _has_all(text: str, words: Collection[str]) -> bool:
    return all(word in text for word in words)
