"""How a turn is shown while it runs: as text for people, or as JSON lines for scripts.

Printing happens on a thread: a terminal that is paused must not stop the
heartbeat of the turn it shows.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Protocol

from lastgood.cli.output import complain, for_stream, one_line, print_json, remark
from lastgood.flows.beginning import Submitted
from lastgood.flows.run import Outcome
from lastgood.model.attempts import AttemptStatus
from lastgood.model.events import EventKind, StoredEvent
from lastgood.model.messages import Role

_MOST_OF_CALL = 200


class Screen(Protocol):
    async def event(self, event: StoredEvent) -> None: ...

    async def ended(self, submitted: Submitted, outcome: Outcome) -> None: ...


class Text:
    """The answer on stdout, everything else on stderr."""

    def __init__(self) -> None:
        self._in_line = False  # the last thing printed was no newline

    async def event(self, event: StoredEvent) -> None:
        # What another agent of the team says while it does a task is not the answer.
        if event.kind is EventKind.TEXT_STREAMED and "agent" not in event.data:
            await self._print(str(event.data["content"]))
            return
        told = _remark_on(event)
        if told:
            await self._end_line(sys.stdout.isatty())
            remark(told)

    async def ended(self, submitted: Submitted, outcome: Outcome) -> None:
        if submitted.replayed:
            remark("this key was used before: told again, nothing was run")
            await self._print(answer_of(outcome) or "")
        await self._end_line()
        if outcome.status is not AttemptStatus.COMMITTED:
            complain(_reason(outcome))

    async def _print(self, text: str) -> None:
        if text:
            self._in_line = not text.endswith("\n")
            await asyncio.to_thread(_write, for_stream(text, sys.stdout))

    async def _end_line(self, wanted: bool = True) -> None:
        if self._in_line and wanted:
            await self._print("\n")


class JsonLines:
    async def event(self, event: StoredEvent) -> None:
        await self._print(
            {"seq": event.seq, "kind": event.kind.value, "attempt": event.attempt, "data": dict(event.data)}
        )

    async def ended(self, submitted: Submitted, outcome: Outcome) -> None:
        last: dict[str, Any] = {
            "session": submitted.session,
            "turn": submitted.turn,
            "seq": outcome.turn.seq if outcome.turn else None,
            "attempt": outcome.attempt,
            "status": outcome.status.value,
            "text": answer_of(outcome),
        }
        if submitted.replayed:
            last["replayed"] = True
            remark("this key was used before: told again, nothing was run")
        if outcome.status is not AttemptStatus.COMMITTED:
            complain(_reason(outcome))
            last["error"] = {
                "code": outcome.error.code if outcome.error else outcome.status.value,
                "message": _reason(outcome),
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
            return f"{data['model']} failed and is asked again: {_short(str(data['reason']))}"
        case EventKind.MODEL_FELL_BACK:
            return f"{data['fallback_model']} is asked instead: {_short(str(data['reason']))}"
        case EventKind.HISTORY_SHORTENED:
            return f"too long for the model; it is shown all but the oldest {data['left_out']} messages"
        case EventKind.AGENT_CHANGED:
            return "the agent's definition has changed since the last turn"
        case EventKind.AGENT_SWITCHED:
            return f"{who}speaks now"
        case _:
            return None


def _short(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _MOST_OF_CALL else line[:_MOST_OF_CALL] + "…"


def answer_of(outcome: Outcome) -> str | None:
    """What the agent said last; None: nothing was committed."""
    if outcome.turn is None:
        return None
    last = outcome.turn.messages[-1]
    return last.content if last.role is Role.ASSISTANT else ""


def _reason(outcome: Outcome) -> str:
    if outcome.error is not None:
        return outcome.error.message
    return f"the turn ended {outcome.status.value}; nothing was committed"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
