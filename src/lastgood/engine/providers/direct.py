"""Models that speak a dialect of their own, through `pydantic_ai.direct`: Anthropic, Google, Bedrock.

An extra, and a heavy one: importing it takes seconds. So it is imported on a thread when the first of these
models is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib import import_module
from typing import TYPE_CHECKING

from lastgood.engine.providers.chat_limits import ChatLimits
from lastgood.engine.providers.provider import Chunk, ModelAnswer, ModelCall
from lastgood.outside.secrets import Secrets

if TYPE_CHECKING:
    from lastgood.engine.providers.direct_stream import DirectStream

#: Where pydantic-ai keeps what it knows of each.
_VENDORS = {"anthropic": "anthropic", "google": "google", "amazon-bedrock": "bedrock"}


class Direct:
    def __init__(self, secrets: Secrets, limits: ChatLimits | None = None) -> None:
        self._secrets = secrets
        self._limits = limits or ChatLimits()
        self._speaking: DirectStream | None = None
        self._imported: set[str] = set()

    async def stream(self, call: ModelCall) -> AsyncGenerator[Chunk | ModelAnswer, None]:
        provider = call.model.provider
        if provider not in self._imported:
            speaking = await asyncio.to_thread(_import, _VENDORS[provider])
            self._imported.add(provider)
            # Another call may have awaited the same import; one set of clients is enough.
            self._speaking = self._speaking or speaking(self._secrets, self._limits)
        assert self._speaking is not None
        async with aclosing(self._speaking.stream(call)) as parts:
            async for part in parts:
                yield part

    async def close(self) -> None:
        speaking, self._speaking = self._speaking, None
        self._imported.clear()
        if speaking is not None:
            await speaking.close()


def _import(vendor: str) -> type[DirectStream]:
    from lastgood.engine.providers.direct_stream import DirectStream

    import_module(f"pydantic_ai.models.{vendor}")
    return DirectStream
