"""A turn as a chat completion: whole, or in chunks. One way to build it for both.

Text of the agent between its tool calls is joined into one, separated by blank lines. Tools that ran on the
server do not appear; calls to the client's own tools do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from lastgood.core.history import open_calls
from lastgood.errors import LastgoodError
from lastgood.model.messages import Message, Role, ToolCall
from lastgood.model.sessions import Usage
from lastgood.surfaces.openai.error_envelope import error_frame
from lastgood.surfaces.openai.schemas import calls_json, chunk_json, completion_json, usage_json

BREAK = "\n\n"


@dataclass(frozen=True, slots=True)
class Finished:
    """The result of a turn that succeeded."""

    text: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    usage: Usage
    cut_short: bool

    @property
    def reason(self) -> str:
        if self.calls:
            return "tool_calls"
        return "length" if self.cut_short else "stop"


def finished(messages: Sequence[Message], usage: Usage, cut_short: bool) -> Finished:
    """Of everything that was said in the turn, in order."""
    answers = [message for message in messages if message.role is Role.ASSISTANT]
    said = [message.content for message in answers if message.content]
    thought = [message.reasoning.text for message in answers if message.reasoning and message.reasoning.text]
    return Finished(BREAK.join(said), BREAK.join(thought), open_calls(messages), usage, cut_short)


@dataclass(slots=True)
class Chunks:
    """The frames of one stream."""

    id: str
    model: str
    created: int
    with_usage: bool
    _speaks: bool = False  # the last piece belongs to the response that is still coming
    _began: bool = False

    def text(self, piece: str) -> bytes:
        gap = BREAK if self._began and not self._speaks else ""
        self._speaks = self._began = True
        return self._frame({"content": gap + piece})

    def reasoning(self, piece: str) -> bytes:
        return self._frame({"reasoning_content": piece})

    def response_ended(self) -> None:
        """What comes next is another response of the model."""
        self._speaks = False

    def start(self) -> bytes:
        return self._frame({"role": "assistant", "content": ""})

    def end(self, done: Finished) -> bytes:
        frames = b""
        if done.calls:
            frames += self._frame({"tool_calls": calls_json(done.calls, streamed=True)})
        frames += self._frame({}, done.reason)
        if self.with_usage:
            plain = chunk_json(self.id, self.model, self.created, {})
            frames += _data({**plain, "choices": [], "usage": usage_json(done.usage)})
        return frames + b"data: [DONE]\n\n"

    def failure(self, error: LastgoodError, *, has_effects: bool) -> bytes:
        """The last frame: no [DONE] follows, so no client takes it for an end."""
        return _data(error_frame(error, has_effects=has_effects))

    def _frame(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        plain = chunk_json(self.id, self.model, self.created, delta, reason)
        return _data({**plain, "usage": None} if self.with_usage else plain)


def _data(plain: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(plain) + b"\n\n"


def whole(id: str, model: str, created: int, done: Finished) -> dict[str, Any]:
    answer = completion_json(id, model, created, done.text, done.calls, done.reason, done.usage)
    if done.reasoning:
        # Under the name of the streamed chunks. OpenAI has no field for it.
        answer["choices"][0]["message"]["reasoning_content"] = done.reasoning
    return answer
