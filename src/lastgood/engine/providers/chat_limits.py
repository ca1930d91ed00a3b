"""How long and how large an answer of a model may be."""

from __future__ import annotations

from dataclasses import dataclass

from lastgood.engine.providers.chat_stream_parser import ParserLimits


@dataclass(frozen=True, slots=True)
class ChatLimits:
    connect_seconds: float = 10.0
    idle_seconds: float = 120.0  # between two bytes, the first one included
    reading: ParserLimits = ParserLimits()
