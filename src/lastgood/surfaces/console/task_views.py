"""What a run on a runtime reported: its messages by type, and the changes that it left behind.

Both are the worker's own words. A worker of another release may leave something out or send another shape, so
nothing here is taken for granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lastgood.model.tasks import SnapshotSummary, TaskMessage
from lastgood.surfaces.console.text_format import moment, pretty

#: A text is cut after so many characters; the API has all of it.
MOST_CHARACTERS = 20_000
_HUNK = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")


def activity_views(messages: Sequence[TaskMessage]) -> list[dict[str, Any]]:
    """A tool call and its result are one entry, so that a reader sees one thing and not two."""
    views: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for message in messages:
        body, id = message.body, _text(message.body.get("call"))
        match body.get("type"):
            case "tool_use":
                call = _call(message, None)
                if id:
                    calls[id] = call
                views.append(_view(message, "tool", call=call))
            case "tool_result" if id in calls and calls[id]["result"] is None:
                calls[id]["result"] = _cut(_text(body.get("output")))
            case "tool_result":
                views.append(_view(message, "tool", call=_call(message, _cut(_text(body.get("output"))))))
            case "text" | "thinking" | "error" as kind:
                views.append(_view(message, kind, text=_cut(_text(body.get("content")))))
            case _:
                views.append(_view(message, "other", text=_cut(pretty(body))))
    return views


def _view(message: TaskMessage, kind: str, *, text: str = "", call: Any = None) -> dict[str, Any]:
    return {"seq": message.seq, "at": moment(message.created_at), "kind": kind, "text": text, "call": call}


def _call(message: TaskMessage, result: str | None) -> dict[str, Any]:
    body = message.body
    given = body.get("input")
    return {
        "id": f"{message.seq}",
        "name": _text(body.get("tool")) or "tool",
        "arguments": "" if given is None else _cut(pretty(given)),
        "result": result,
    }


def diff_view(snapshot: SnapshotSummary) -> dict[str, Any]:
    """The files that a task changed, the patch, and the files that are not in its snapshot."""
    summary = snapshot.summary
    patch = _text(summary.get("patch"))
    listed = _pairs(summary.get("changes"), "change")
    left_out = _pairs(summary.get("left_out"), "reason")
    is_cut = (
        bool(summary.get("patch_cut"))
        or _number(summary.get("changes_total")) > len(listed)
        or _number(summary.get("left_out_total")) > len(left_out)
    )
    return {
        "changes": listed,
        "left_out": left_out,
        "patch": patch,
        "is_cut": is_cut,
        "bytes": snapshot.size,
    }


def _pairs(listed: Any, about: str) -> list[dict[str, str]]:
    rows = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    return [{"path": _text(one.get("path")), about: _text(one.get(about))} for one in rows]


def patch_lines(patch: str) -> Iterator[tuple[str, str]]:
    """Each line with its kind: added, removed, hunk, file, or same. Counts the lines of each hunk, because a
    removed line may look like the header of a file (`--- x`)."""
    old = new = 0
    for line in patch.removesuffix("\n").split("\n") if patch else ():
        if old <= 0 and new <= 0:
            found = _HUNK.match(line)
            if found is not None:
                old, new = (1 if size is None else int(size) for size in found.groups())
            yield ("hunk" if found is not None else "file"), line
        elif line.startswith("+"):
            new -= 1
            yield "added", line
        elif line.startswith("-"):
            old -= 1
            yield "removed", line
        else:
            if not line.startswith("\\"):  # `\ No newline at end of file` is no line of either side
                old, new = old - 1, new - 1
            yield "same", line


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else pretty(value)


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _cut(text: str) -> str:
    more = len(text) - MOST_CHARACTERS
    return f"{text[:MOST_CHARACTERS]}\n… {more:,} more characters" if more > 0 else text
