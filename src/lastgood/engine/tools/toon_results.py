"""Results of tools as TOON: JSON objects and arrays are written anew if that makes them shorter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import orjson

from lastgood.core.toon import shorter_as_toon
from lastgood.engine.tools.cancellation import in_thread
from lastgood.engine.tools.tool import Tool, ToolUse


def with_toon_results(tool: Tool) -> Tool:
    run: Callable[[ToolUse], Awaitable[str]] = tool.run

    async def run_converted(use: ToolUse) -> str:
        text = await run(use)
        return await in_thread(lambda stop: _converted(text)) if text[:1] in ("{", "[") else text

    return replace(tool, run=run_converted)


def _converted(text: str) -> str:
    try:
        found = shorter_as_toon(orjson.loads(text), len(text))
    except (orjson.JSONDecodeError, RecursionError):
        return text
    return text if found is None else found
