"""Discovers an Ollama server on this machine that is not configured.

Sends one request with a short timeout. Any failure means that there is none; it is never an error.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import orjson

from lastgood.model.agents import ModelSpec

#: Ollama's default address.
OLLAMA = "127.0.0.1:11434"

_SECONDS = 0.3
_MOST_BYTES = 1024 * 1024
_OK = re.compile(rb"HTTP/1\.[01] 200\b")
_NAME = re.compile(r"[\w.:/@-]{1,200}", re.ASCII)


async def find_ollama(address: str = OLLAMA) -> ModelSpec | None:
    """Returns the first chat model of the Ollama at that address, or None."""
    try:
        async with asyncio.timeout(_SECONDS):
            answer = await _ask(address)
    except (OSError, TimeoutError):
        return None
    name = _first_name(answer)
    return None if name is None else ModelSpec("ollama", name, base_url=f"http://{address}/v1")


async def _ask(address: str) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        # HTTP/1.0: the answer is not chunked, and ends with its connection.
        writer.write(f"GET /api/tags HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while len(answer) <= _MOST_BYTES and (data := await reader.read(65536)):
            answer += data
        return answer
    finally:
        writer.transport.abort()


def _first_name(answer: bytes) -> str | None:
    head, _, body = answer.partition(b"\r\n\r\n")
    if _OK.match(head) is None:
        return None
    try:
        listing: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    models = listing.get("models") if isinstance(listing, dict) else None
    listed = models if isinstance(models, list) else []
    return next((one["name"] for one in listed if isinstance(one, dict) and _can_talk(one)), None)


def _can_talk(model: dict[str, Any]) -> bool:
    """Those that only turn texts into numbers are called so, or are of BERT's family."""
    name, details = model.get("name"), model.get("details")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        return False
    family = details.get("family") if isinstance(details, dict) else None
    return "embed" not in name.lower() and "bert" not in str(family).lower()
