"""Builds a response from the events of OpenAI's Responses API.

Text and calls go through the builder of chat completions. Knows no network; what it cannot understand raises,
as there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson

from lastgood.engine.providers.completion_builder import CompletionBuilder
from lastgood.engine.providers.provider import Chunk, ModelAnswer
from lastgood.engine.providers.responses_request import ITEMS
from lastgood.model.agents import ModelSpec
from lastgood.model.messages import Reasoning

#: Of reasoning, what the provider wants back.
_KEPT = ("type", "id", "encrypted_content")


class ResponseBuilder:
    __slots__ = ("_began", "_calls", "_chat", "_items", "_said", "_thought")

    def __init__(self) -> None:
        self._chat = CompletionBuilder()
        self._items: list[dict[str, Any]] = []  # reasoning as it came, and where text and calls stand
        self._said = self._thought = 0  # characters of the items that are complete
        self._calls = 0
        self._began = False

    @property
    def size(self) -> int:
        """Not 0 once it has begun: what ends then was cut off, and is no other API."""
        return self._chat.size + self._began

    @property
    def finish(self) -> str | None:
        return self._chat.finish

    @finish.setter
    def finish(self, finish: str | None) -> None:
        self._chat.finish = finish

    def chunks(self) -> list[Chunk]:
        return self._chat.chunks()

    def take(self, piece: dict[str, Any]) -> None:
        """Adds one event, or a whole response."""
        self._began = True
        match piece.get("type"):
            case "response.output_text.delta" | "response.refusal.delta":
                self._add(content=piece["delta"])
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._add(reasoning=piece["delta"])
            case "response.reasoning_summary_part.added" if piece.get("summary_index"):
                self._add(reasoning="\n\n")
            case "response.output_item.done":
                self._item(piece["item"])
            case "response.completed" | "response.incomplete":
                self._end(piece["response"])
            case None:
                self._end(piece)
            case _:
                pass  # the beginning of something, or a part of what comes whole

    def _add(self, **delta: Any) -> None:
        self._chat.take({"choices": [{"delta": delta}]})

    def _item(self, item: dict[str, Any]) -> None:
        match item["type"]:
            case "message":
                if self._chat.said == self._said:  # not streamed
                    for part in item["content"]:
                        self._add(content=part.get("text") or part.get("refusal") or "")
                self._items.append({"text": self._chat.said - self._said})
                self._said = self._chat.said
            case "function_call":
                function = {"name": item["name"], "arguments": item["arguments"]}
                self._add(tool_calls=[{"index": self._calls, "id": item["call_id"], "function": function}])
                self._items.append({"call": item["call_id"]})
                self._calls += 1
            case "reasoning":
                self._reasoning(item)
            case _:
                pass  # a tool of the provider's own

    def _reasoning(self, item: dict[str, Any]) -> None:
        summary = item.get("summary") or []
        if self._chat.thought == self._thought:
            self._add(reasoning="\n\n".join(part["text"] for part in summary))
        self._thought = self._chat.thought
        if item.get("encrypted_content"):  # without it, the provider would look for it in its own store
            kept: dict[str, Any] = {
                name: item[name] for name in ("type", "id", "encrypted_content") if name in item
            }
            self._items.append({**kept, "summary": summary})

    def _end(self, response: dict[str, Any]) -> None:
        if not self._items and not self._said:
            for item in response["output"]:
                self._item(item)
        usage = response.get("usage") or {}
        counted = {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "prompt_tokens_details": usage.get("input_tokens_details"),
        }
        self._chat.take({"usage": counted})
        match response.get("status"):
            case "completed":
                self._chat.finish = "stop"
            case "incomplete":
                why = (response.get("incomplete_details") or {}).get("reason")
                self._chat.finish = "content_filter" if why == "content_filter" else "length"
            case _:
                pass  # it did not come to its end

    def answer(self, model: ModelSpec) -> ModelAnswer:
        answer = self._chat.answer(model)
        if not any("encrypted_content" in item for item in self._items):
            return answer
        thought = answer.message.reasoning.text if answer.message.reasoning is not None else ""
        opaque = orjson.dumps({ITEMS: self._items}).decode()
        message = replace(answer.message, reasoning=Reasoning(model.ref, thought, opaque))
        return replace(answer, message=message)
