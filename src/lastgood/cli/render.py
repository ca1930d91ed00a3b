"""Shows a running turn: as text for people, or as JSON lines for scripts.

Prints on a thread: a paused terminal must not stop the heartbeat of the turn.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Protocol

from lastgood.cli.backend import TurnEnd
from lastgood.cli.output import complain, for_stream, one_line, print_json, remark
from lastgood.model.events import EventKind, StoredEvent

_MOST_OF_CALL = 200


class Screen(Protocol):
    async def event(self, event: StoredEvent) -> None: ...

    async def ended(self, ended: TurnEnd) -> None: ...


class TextScreen:
    """The answer on stdout, everything else on stderr."""

    def __init__(self) -> None:
        self._in_line = False  # the last character printed was not a newline
        self._turn = ""  # the last turn that started

    async def event(self, event: StoredEvent) -> None:
        # Text of a sub-agent that runs a task is not part of the answer.
        if event.kind is EventKind.TEXT_STREAMED and "agent" not in event.data:
            await self._print(str(event.data["content"]))
            return
        text = self._new_try(event) or _remark_on(event)
        if text:
            await self._end_line(sys.stdout.isatty())
            remark(text)

    async def ended(self, ended: TurnEnd) -> None:
        if ended.replayed:
            remark("replayed: this key was used before, and nothing ran")
            await self._print(ended.committed.text if ended.committed else "")
        await self._end_line()
        if not ended.is_good:
            complain(ended.reason)

    def _new_try(self, event: StoredEvent) -> str | None:
        """Output of an earlier attempt is not part of the answer, but cannot be taken back."""
        if event.kind is not EventKind.ATTEMPT_STARTED:
            return None
        before, self._turn = self._turn, str(event.data["turn"])
        return "the turn was interrupted; retrying" if before == self._turn else None

    async def _print(self, text: str) -> None:
        if text:
            self._in_line = not text.endswith("\n")
            await asyncio.to_thread(_write, for_stream(text, sys.stdout))

    async def _end_line(self, wanted: bool = True) -> None:
        if self._in_line and wanted:
            await self._print("\n")


class JsonScreen:
    async def event(self, event: StoredEvent) -> None:
        await self._print(
            {"seq": event.seq, "kind": event.kind.value, "attempt": event.attempt, "data": dict(event.data)}
        )

    async def ended(self, ended: TurnEnd) -> None:
        last: dict[str, Any] = {
            "session": ended.session,
            "turn": ended.turn,
            "seq": ended.committed.seq if ended.committed else None,
            "attempt": ended.attempt,
            "status": ended.status,
            "text": ended.committed.text if ended.committed else None,
        }
        if ended.replayed:
            last["replayed"] = True
            remark("replayed: this key was used before, and nothing ran")
        if not ended.is_good:
            complain(ended.reason)
            last["error"] = {
                "code": ended.error.code if ended.error else ended.status,
                "message": ended.reason,
            }
        await self._print(last)

    async def _print(self, plain: dict[str, Any]) -> None:
        await asyncio.to_thread(print_json, plain)


def _remark_on(event: StoredEvent) -> str | None:
    data = event.data
    who = f"{one_line(str(data['agent']))} " if "agent" in data else ""
    match event.kind:
        case EventKind.TOOL_CALLED:
            call = _short(f"{data['name']} {data['arguments']}")
            return f"{who}→ {call}"
        case EventKind.TOOL_ANSWERED:
            return f"{who}← {_short(str(data['result']) or '(nothing)')}"
        case EventKind.MODEL_RETRIED:
            return f"{data['model']} failed, retrying: {_short(str(data['reason']))}"
        case EventKind.MODEL_FELL_BACK:
            return f"falling back to {data['fallback_model']}: {_short(str(data['reason']))}"
        case EventKind.HISTORY_SHORTENED:
            return f"the history is too long for the model; left out the oldest {data['left_out']} messages"
        case EventKind.AGENT_CHANGED:
            return "the agent file has changed since the last turn"
        case EventKind.AGENT_SWITCHED:
            return f"{who}takes over"
        case _:
            return None


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _MOST_OF_CALL else line[:_MOST_OF_CALL] + "…"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
