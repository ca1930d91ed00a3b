"""Parses the body of an answer of OpenAI's Responses API incrementally, as that of a chat completion."""

from __future__ import annotations

from typing import Any

from lastgood.engine.providers.chat_stream_parser import ChatStreamParser, ParserLimits
from lastgood.engine.providers.provider_errors import refusal_in_stream
from lastgood.engine.providers.response_builder import ResponseBuilder
from lastgood.model.agents import ModelSpec
from lastgood.outside.secrets import Secrets


class ResponseStreamParser(ChatStreamParser):
    """The same stream of JSON events, with other events."""

    __slots__ = ()

    def __init__(self, model: ModelSpec, secrets: Secrets, limits: ParserLimits) -> None:
        super().__init__(model, secrets, limits, ResponseBuilder())

    def _take(self, piece: Any) -> None:
        try:
            error = _error_in(piece)
            if error is not None:
                raise refusal_in_stream(self._model, error, self._secrets)
            self._completion.take(piece)
            self.done = self._completion.finish is not None
            return
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            fault = self._garbled("JSON that is not a response")
        raise fault


def _error_in(piece: dict[str, Any]) -> Any:
    match piece.get("type"):
        case "error":
            return piece
        case "response.failed":
            return piece["response"].get("error") or piece
        case _:
            return piece.get("error")
