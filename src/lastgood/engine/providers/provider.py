"""What the loop needs of a model, forevery provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from lastgood.model.agents import ModelSpec, StructuredOutput
from lastgood.model.call_options import CallOptions
from lastgood.model.messages import Message
from lastgood.model.sessions import Usage


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to a model. `about` says on whose behalf, for logs; it is not sent."""

    model: ModelSpec
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    output: StructuredOutput | None = None
    options: CallOptions = CallOptions()  # of the request; what the file settles, too, is in `model`
    about: dict[str, Any] = field(default_factory=dict)


class ChunkKind(StrEnum):
    TEXT = "text"
    REASONING = "reasoning"


class Chunk(NamedTuple):
    """There is one forevery few letters of an answer, so it is the cheapest thing there is."""

    text: str
    kind: ChunkKind = ChunkKind.TEXT


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """The whole response. It comes last, and only after everything was received."""

    message: Message
    usage: Usage
    cut_short: bool = False  # the model ran into its limit of output tokens


class Provider(Protocol):
    def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        """Chunks as they come, then the answer. A stream that is cut raises ModelError.

        Sends one request. The caller decides about retries, which happen only before the first chunk.
        """
        ...


class Providers(Protocol):
    def find(self, model: ModelSpec) -> Provider:
        """Raises ModelUnknown for an unsupported provider."""
        ...

    def named(self, model: ModelSpec) -> ModelSpec:
        """With its real name. Raises KeyRefused if its name is a variable that is not set."""
        ...

    def has_key(self, model: ModelSpec) -> bool:
        """Whether the API key it needs is set. Sends no request."""
        ...

    def context_size(self, model: ModelSpec) -> int:
        """Its context window in tokens; 0: not known. Sends no request, but may have one sent meanwhile."""
        ...

    async def close(self) -> None: ...
