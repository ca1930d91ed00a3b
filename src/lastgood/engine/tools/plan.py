"""`plan`: named documents that the agents of a file share, across sessions.

A change can name the revision that it is for. If somebody else was faster, it is refused, and the model reads
the plan again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from lastgood.core.plans import MOST_PLANS, PLAN_CHARACTERS, changed_plan, why_not_a_name
from lastgood.engine.tools.cancellation import StopSignal, in_thread
from lastgood.engine.tools.rooted_files import Root, read_under, write_under
from lastgood.engine.tools.shell import working_dir_of
from lastgood.engine.tools.tool import Tool, ToolFailed, ToolUse
from lastgood.model.agents import Effect, OnUnknown, ToolsetSpec
from lastgood.model.notes import Note, NoteAdded
from lastgood.ports.notes import Notes

SPACE = "plans"
_TRIES = 20
#: The longest pause before the second try; each later one may be longer by as much.
_PAUSE_SECONDS = 0.005


def plan_toolset(spec: ToolsetSpec) -> Sequence[Tool]:
    text = {"type": "string"}
    name = {"name": {**text, "description": "The name: lowercase letters, digits, '-' and '_'"}}
    revision = {
        "last_known_revision": {
            "type": "integer",
            "description": "The revision that you read. If the plan has changed since, the call fails.",
        }
    }
    more = {
        "title": {**text, "description": "A title for people"},
        "author": {**text, "description": "Who writes it"},
        "status": {**text, "description": "Its state, in words of your own"},
    }
    path = {"path": {**text, "description": "A file in the working directory"}}
    content = {"content": {**text, "description": "The whole plan; it replaces the one before"}}
    return [
        _writes(
            "write_plan", "Creates or replaces a shared plan.", _write, name | content | more | revision, 2
        ),
        _reads("read_plan", "Returns a shared plan with its revision.", _read, name),
        _reads("list_plans", "Lists the shared plans.", _list, {}),
        _writes("delete_plan", "Deletes a shared plan.", _delete, name | revision),
        _writes(
            "update_plan_from_file",
            "Creates or replaces a shared plan with the content of a file.",
            _write_from_file,
            name | path | more | revision,
            2,
        ),
        _writes(
            "export_plan_to_file",
            "Writes the content of a shared plan to a file, without returning it.",
            _export,
            name | path,
            2,
        ),
        _writes(
            "set_plan_status",
            "Sets the status of a shared plan.",
            _set_status,
            name | {"status": more["status"]} | revision,
            2,
        ),
        _reads("get_plan_status", "Returns the status and revision of a shared plan.", _status, name),
    ]


async def _write(use: ToolUse) -> str:
    return await _change(use, use.arguments)


async def _write_from_file(use: ToolUse) -> str:
    root, path = Root(working_dir_of(use)), use.arguments["path"]
    found = await in_thread(lambda stop: read_under(root, path, 4 * PLAN_CHARACTERS + 1))
    try:
        content = found.data.decode()
    except UnicodeDecodeError:
        raise ToolFailed(f"{path} is not UTF-8") from None
    return await _change(use, {**use.arguments, "content": content})


async def _set_status(use: ToolUse) -> str:
    return await _change(use, {"status": use.arguments["status"]}, is_new=False)


async def _change(use: ToolUse, change: Mapping[str, Any], *, is_new: bool = True) -> str:
    """`is_new`: whether there may be no such plan yet."""
    notes, name, known = _notes(use), _name(use), use.arguments.get("last_known_revision")
    for tried in range(_TRIES):
        # Those that were slower once would meet again.
        await asyncio.sleep(random.uniform(0, tried * _PAUSE_SECONDS))
        note = await (notes.find(SPACE, name) if is_new else _found(use))
        if known is not None and known != (note.revision if note else 0):
            raise _conflict(name, note)
        plan = changed_plan(_plain(note) if note else {}, change)
        if isinstance(plan, str):
            raise ToolFailed(plan)
        body = orjson.dumps(plan).decode()
        if note is None:
            added = await notes.add(SPACE, name, body, MOST_PLANS)
            if added is NoteAdded.FULL:
                raise ToolFailed(f"there are {MOST_PLANS} plans, which is the limit; delete some first")
            revision = 1 if added is NoteAdded.ADDED else None
        else:
            revision = await notes.replace(SPACE, name, body, note.revision)
        if revision is not None:
            return orjson.dumps({"name": name, "revision": revision}).decode()
        # Somebody else was faster. Only the database can tell.
    raise ToolFailed(f"the plan {name!r} is changed all the time; try again later")


async def _read(use: ToolUse) -> str:
    return _json(_shown(await _found(use)))


async def _list(use: ToolUse) -> str:
    notes = await _notes(use).list(SPACE)
    return await in_thread(lambda stop: _listing(notes, stop))


def _listing(notes: Sequence[Note], stop: StopSignal) -> str:
    shown: list[dict[str, Any]] = []
    for note in sorted(notes, key=lambda note: note.id):
        stop.check()
        shown.append({key: value for key, value in _shown(note).items() if key != "content"})
    return _json({"plans": shown})


async def _status(use: ToolUse) -> str:
    shown = _shown(await _found(use))
    return _json({key: shown.get(key, "") for key in ("name", "status", "revision")})


async def _delete(use: ToolUse) -> str:
    name, known, note = _name(use), use.arguments.get("last_known_revision"), await _found(use)
    if known is not None and known != note.revision:
        raise _conflict(name, note)
    if not await _notes(use).delete(SPACE, name, known):
        raise _conflict(name, await _notes(use).find(SPACE, name))
    return f"The plan {name} was deleted."


async def _export(use: ToolUse) -> str:
    note, root, path = await _found(use), Root(working_dir_of(use)), use.arguments["path"]
    content = str(_plain(note).get("content", "")).encode()
    await in_thread(lambda stop: write_under(root, path, content, stop))
    return _json({"name": note.id, "path": path, "revision": note.revision, "bytesWritten": len(content)})


# -- what they share ------------------------------------------------------------------------


def _notes(use: ToolUse) -> Notes:
    if use.notes is None:
        raise ToolFailed("this run cannot keep plans")
    return use.notes


def _name(use: ToolUse) -> str:
    name: str = use.arguments["name"]
    problem = why_not_a_name(name)
    if problem is not None:
        raise ToolFailed(problem)
    return name


async def _found(use: ToolUse) -> Note:
    note = await _notes(use).find(SPACE, _name(use))
    if note is None:
        raise ToolFailed(f"there is no plan {use.arguments['name']!r}; list_plans shows those that there are")
    return note


def _conflict(name: str, note: Note | None) -> ToolFailed:
    now = f"its revision is {note.revision} now" if note else "there is no such plan now"
    return ToolFailed(f"the plan {name!r} has changed: {now}; read it again and repeat your change")


def _plain(note: Note) -> dict[str, Any]:
    try:
        plain = orjson.loads(note.body)
    except orjson.JSONDecodeError:
        plain = None
    return plain if isinstance(plain, dict) else {"content": "[This plan is damaged; write it again]"}


def _shown(note: Note) -> dict[str, Any]:
    changed = datetime.fromtimestamp(note.updated_at, UTC).isoformat(timespec="seconds")
    return {"name": note.id, **_plain(note), "revision": note.revision, "updatedAt": changed}


def _json(plain: dict[str, Any]) -> str:
    return orjson.dumps(plain).decode()


_Run = Callable[[ToolUse], Awaitable[str]]


def _reads(name: str, about: str, run: _Run, properties: dict[str, Any]) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(name, about, schema, run, on_unknown=OnUnknown.REPEAT, effect=Effect.SAFE)


def _writes(name: str, about: str, run: _Run, properties: dict[str, Any], required: int = 1) -> Tool:
    """The first `required` properties must be there. A repeated change would be another revision."""
    schema = {"type": "object", "properties": properties, "required": list(properties)[:required]}
    return Tool(name, about, schema, run, on_unknown=OnUnknown.FAIL, effect=Effect.DESTRUCTIVE)
