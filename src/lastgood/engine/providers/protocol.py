"""What the loop needs of a model, whoever serves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from lastgood.model.messages import Message
from lastgood.model.sessions import Usage


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to a model. `about` says on whose behalf, for logs; it is not sent."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    text: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole response. It comes last, and only after everything was received."""

    message: Message
    usage: Usage


class Provider(Protocol):
    def stream(self, call: ModelCall) -> AsyncIterator[Chunk | Answer]:
        """Chunks as they come, then the answer. A stream that is cut raises ModelError."""
        ...
