"""Shows a running turn: as text for people, or as JSON lines for scripts.

Prints on a thread: a paused terminal must not stop the heartbeat of the turn.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Protocol

from lastgood.cli.backend import TurnEnd
from lastgood.cli.output import can_colour, complain, for_stream, one_line, print_json, remark
from lastgood.cli.terminal_markdown import MarkdownColours
from lastgood.model.events import (
    AgentChanged,
    AgentSwitched,
    AttemptStarted,
    HistoryShortened,
    HookDenied,
    HookWarned,
    ModelFellBack,
    ModelRetried,
    StoredEvent,
    TextStreamed,
    ToolAnswered,
    ToolCalled,
    agent_of,
    as_json,
)

_MOST_OF_CALL = 200
_MOST_OF_ERROR = 1000  # it ends with what to do


class Screen(Protocol):
    async def event(self, event: StoredEvent) -> None: ...

    async def ended(self, ended: TurnEnd) -> None: ...


class TextScreen:
    """The answer on stdout, everything else on stderr.

    `advice`: how to send a message again whose turn failed; `{session}` in it is replaced.
    """

    def __init__(self, advice: str = "") -> None:
        self._advice = advice
        self._in_line = False  # the last character printed was not a newline
        self._turn = ""  # the last turn that started
        self._colours = MarkdownColours() if can_colour(sys.stdout) else None

    async def event(self, event: StoredEvent) -> None:
        # Text of a sub-agent that runs a task is not part of the answer.
        if isinstance(event.data, TextStreamed) and event.data.agent is None:
            await self._print(event.data.content)
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
            complain(self._failure(ended))

    def _failure(self, ended: TurnEnd) -> str:
        """The reason in one line, that nothing was committed, and how to try again."""
        if ended.status != "failed":
            return ended.reason
        reason = ended.reason.rstrip(".")
        if "nothing was committed" not in reason:
            reason += "; nothing was committed"
        return f"{reason}. {self._advice.format(session=ended.session)}" if self._advice else reason

    def _new_try(self, event: StoredEvent) -> str | None:
        """Output of an earlier attempt is not part of the answer, but cannot be taken back."""
        if not isinstance(event.data, AttemptStarted):
            return None
        before, self._turn = self._turn, event.data.turn
        return "the turn was interrupted; retrying" if before == self._turn else None

    async def _print(self, text: str) -> None:
        if text:
            self._in_line = not text.endswith("\n")
            shown = for_stream(text, sys.stdout)
            await asyncio.to_thread(_write, self._colours.feed(shown) if self._colours else shown)

    async def _end_line(self, wanted: bool = True) -> None:
        if self._colours is not None:
            await asyncio.to_thread(_write, self._colours.end())
        if self._in_line and wanted:
            self._in_line = False
            await asyncio.to_thread(_write, "\n")


class JsonScreen:
    async def event(self, event: StoredEvent) -> None:
        await self._print(
            {
                "seq": event.seq,
                "kind": event.kind.value,
                "attempt": event.attempt,
                "data": as_json(event.data),
            }
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
    agent = agent_of(event.data)
    who = f"{one_line(agent)} " if agent else ""
    match event.data:
        case ToolCalled(name=name, arguments=arguments):
            return f"{who}→ {_short(f'{name} {arguments}')}"
        case ToolAnswered(result=result):
            most = _MOST_OF_ERROR if result.startswith("error") else _MOST_OF_CALL
            return f"{who}← {_short(result or '(nothing)', most)}"
        case HookDenied(name=name, message=message):
            return f"{who}a hook denied {name}: {_short(message)}"
        case HookWarned(message=message):
            return f"{who}hook: {_short(message)}"
        case ModelRetried(model=model, reason=reason):
            return f"{model} failed, retrying: {_short(reason)}"
        case ModelFellBack(fallback_model=model, reason=reason):
            return f"falling back to {model}: {_short(reason)}"
        case HistoryShortened(left_out=left_out):
            return f"the history is too long for the model; left out the oldest {left_out} messages"
        case AgentChanged():
            return "the agent file has changed since the last turn"
        case AgentSwitched():
            return f"{who}takes over"
        case _:
            return None


def _short(text: str, most: int = _MOST_OF_CALL) -> str:
    line = one_line(text)
    return line if len(line) <= most else line[:most] + "…"


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
