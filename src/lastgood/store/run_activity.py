"""What a run does, as its worker reports it: kept with its session, up to a limit for each attempt.

Above the limit a message is shown to those who watch, and leaves one row behind: it says from where on the
activity is not complete, and its number is that of the newest message, so none is stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from lastgood.model.tasks import OMITTED, TaskMessage
from lastgood.store.task_rows import as_bytes
from lastgood.store.work_access import Statements

#: Of each attempt.
MOST_BYTES = 4 * 1024 * 1024
#: What a row costs besides its body: many small messages are not free.
_ROW_BYTES = 100
_NOTE = "more of this run's activity was shown while it ran, and is not stored"


async def store_messages(
    statements: Statements, attempt: Mapping[str, Any], messages: Sequence[TaskMessage]
) -> None:
    """`messages` are newer than the last one; the session is locked."""
    if not messages:
        return
    ((before,),) = await statements.rows("activity_bytes", attempt)
    added = 0
    is_full = False
    for place, message in enumerate(messages):
        body = as_bytes(message.body)
        size = len(body) + _ROW_BYTES
        if is_full := before + added + size > MOST_BYTES:
            await _omit(statements, attempt, messages[place:])
            break
        added += size
        await statements.rows("insert_message", {**attempt, "seq": message.seq, "body": body})
    # Once one is left out, so are all that follow, however small.
    counted = max(MOST_BYTES - before, added) if is_full else added
    runs_tools = any(message.body.get("type") == "tool_use" for message in messages)
    await statements.rows("note_activity", {**attempt, "bytes": counted, "ran_tools": runs_tools})
    await statements.rows("add_stored_bytes", {**attempt, "bytes": added})


async def _omit(statements: Statements, attempt: Mapping[str, Any], messages: Sequence[TaskMessage]) -> None:
    has_text = any(message.body.get("type") == "text" for message in messages)
    for seq, body in await statements.rows("newest_message", attempt):
        known = orjson.loads(bytes(body))
        if known.get("type") == OMITTED:
            has_text = has_text or bool(known.get("has_text"))
            await statements.rows("delete_message", {**attempt, "seq": seq})
    body = as_bytes({"type": OMITTED, "content": _NOTE, "has_text": has_text})
    await statements.rows("insert_message", {**attempt, "seq": messages[-1].seq, "body": body})
