"""Options of a model call that a request sets. They apply to that turn and all its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class CallOptions:
    """None or empty: as the agent's file says.

    `tools` are the caller's own, as JSON: the model may call them, and the turn ends
    with those calls open, for the caller to answer.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    response_format: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(str(tool["function"]["name"]) for tool in self.tools)


def options_as_json(options: CallOptions) -> dict[str, Any]:
    """What is set, and nothing else: an ask without options stores none."""
    plain = {field.name: getattr(options, field.name) for field in fields(options)}
    return {name: value for name, value in plain.items() if value is not None and value != ()}


def options_from_json(plain: Mapping[str, Any]) -> CallOptions:
    known = dict(plain)
    for name in ("stop", "tools"):
        if name in known:
            known[name] = tuple(known[name])
    return CallOptions(**known)
