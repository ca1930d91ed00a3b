"""`memory`: facts that an agent keeps from session to session.

They are effects, like a written file: a turn that failed has stored them, too. Nothing of them is put into a
prompt by itself; what the model reads is a tool result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from lastgood.core.memories import (
    MOST_MEMORIES,
    Memory,
    is_memory_id,
    memory_id,
    search,
    why_not_searched,
    why_not_stored,
)
from lastgood.engine.tools.cancellation import StopSignal, in_thread
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.model.notes import Note, NoteAdded
from lastgood.ports.notes import Notes

#: Of the memories of a result. It is stored whole with every call, and a prompt would have only a part of it.
LISTED_CHARACTERS = 80_000
#: What a memory has in a result beside its text.
_AROUND = 100

_TEXT = {"type": "string"}
_ID = {**_TEXT, "description": "The id of the memory"}
_CATEGORY = {**_TEXT, "description": "A category, for example preference, fact, project or decision"}


def memory_toolset(spec: ToolsetSpec) -> Sequence[Tool]:
    memories = _MemoryTools(f"memory:{spec.options.get('path') or ''}")
    text = {**_TEXT, "description": "What to remember"}
    words = {**_TEXT, "description": "Words that the memory must contain, all of them"}
    return [
        _tool(
            "add_memory",
            "Stores a fact for later sessions: a preference, a decision, something about the project. Update "
            "an existing memory instead of adding it again.",
            memories.add,
            ("memory",),
            memory=text,
            category=_CATEGORY,
        ),
        _reads("get_memories", "Lists all memories. Prefer search_memories.", memories.list_all),
        _reads(
            "search_memories",
            "Finds memories by words and category. Use it before you answer something that depends on "
            "earlier sessions.",
            memories.find,
            query=words,
            category=_CATEGORY,
        ),
        _tool(
            "update_memory",
            "Replaces the text of a memory, and its category if one is given.",
            memories.update,
            ("id", "memory"),
            id=_ID,
            memory=text,
            category=_CATEGORY,
        ),
        _tool("delete_memory", "Deletes a memory.", memories.delete, ("id",), id=_ID),
    ]


class _MemoryTools:
    def __init__(self, space: str) -> None:
        self._space = space

    async def add(self, use: ToolUse) -> str:
        text, category = _content(use)
        id = memory_id(use.key, text, category)
        added = await _notes(use).add(self._space, id, _body(text, category), MOST_MEMORIES)
        if added is NoteAdded.FULL:
            raise ToolFailed(f"there are {MOST_MEMORIES:,} memories, which is the limit; delete some first")
        return f"Memory stored with the id {id}."

    async def list_all(self, use: ToolUse) -> str:
        notes = await _notes(use).list(self._space)
        return await in_thread(lambda stop: _listing(_memories(notes, stop)))

    async def find(self, use: ToolUse) -> str:
        query, category = use.arguments.get("query", ""), use.arguments.get("category", "")
        problem = why_not_searched(query)
        if problem is not None:
            raise ToolFailed(problem)
        notes = await _notes(use).list(self._space)
        return await in_thread(lambda stop: _listing(search(_memories(notes, stop), query, category)))

    async def update(self, use: ToolUse) -> str:
        text, category = _content(use)
        id = _id(use)
        there = await _notes(use).find(self._space, id)
        if there is None:
            raise _unknown(id)
        body = _body(text, category or _memory(there).category)
        if await _notes(use).replace(self._space, id, body) is None:
            raise _unknown(id)
        return f"Memory {id} updated."

    async def delete(self, use: ToolUse) -> str:
        id = _id(use)
        if not await _notes(use).delete(self._space, id):
            raise _unknown(id)
        return f"Memory {id} deleted."


def _notes(use: ToolUse) -> Notes:
    if use.notes is None:
        raise ToolFailed("this run cannot keep memories")
    return use.notes


def _content(use: ToolUse) -> tuple[str, str]:
    text, category = use.arguments["memory"].strip(), use.arguments.get("category", "").strip()
    problem = why_not_stored(text, category)
    if problem is not None:
        raise ToolFailed(problem)
    return text, category


def _id(use: ToolUse) -> str:
    id: str = use.arguments["id"]
    if not is_memory_id(id):
        raise _unknown(id)
    return id


def _unknown(id: str) -> ToolFailed:
    return ToolFailed(f"there is no memory with the id {id!r:.40}; search_memories shows the ids")


def _body(text: str, category: str) -> str:
    return orjson.dumps({"memory": text, "category": category}).decode()


def _memory(note: Note) -> Memory:
    try:
        plain = orjson.loads(note.body)
        return Memory(note.id, str(plain["memory"]), str(plain["category"]), note.created_at)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Memory(note.id, "[This memory is damaged; delete it]", "", note.created_at)


def _memories(notes: Sequence[Note], stop: StopSignal) -> Iterator[Memory]:
    for note in notes:
        stop.check()
        yield _memory(note)


def _listing(memories: Iterable[Memory]) -> str:
    """The newest ones that fit, the oldest of them first."""
    found = list(memories)
    listed: list[dict[str, str]] = []
    left = LISTED_CHARACTERS
    for memory in reversed(found):
        left -= len(memory.text) + _AROUND
        if left < 0:
            break
        listed.append(
            {
                "id": memory.id,
                "created_at": datetime.fromtimestamp(memory.created_at, UTC).isoformat(timespec="seconds"),
                "memory": memory.text,
                **({"category": memory.category} if memory.category else {}),
            }
        )
    text = orjson.dumps(listed[::-1]).decode()
    more = len(found) - len(listed)
    return f"{text}\n[{more} older memories are not listed; search for more specific words]" if more else text


_Run = Callable[[ToolUse], Awaitable[str]]


def _reads(name: str, about: str, run: _Run, /, **properties: dict[str, Any]) -> Tool:
    schema = {"type": "object", "properties": properties, "required": []}
    return Tool(name, about, schema, run, on_unknown=OnUnknown.REPEAT, effect=Effect.SAFE)


def _tool(name: str, about: str, run: _Run, required: Sequence[str], /, **properties: dict[str, Any]) -> Tool:
    """Made again, these calls do what they did: so they are repeated after a crash."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(name, about, schema, run, on_unknown=OnUnknown.REPEAT, effect=Effect.DESTRUCTIVE)
