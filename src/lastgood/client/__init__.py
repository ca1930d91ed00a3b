"""The Python client: sessions, and turns as streams of typed events.

    async with AsyncClient("http://127.0.0.1:8080") as client:
        session = await client.create("default")
        async for event in client.run(session.id, "Hello"):
            ...

`Client` has the same calls for synchronous code. Errors are classes of `lastgood.errors`. Events are
defined in `lastgood.client.events`, sessions and turns in `lastgood.client.models`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lastgood.client.calls import AsyncClient
    from lastgood.client.sync_client import Client

__all__ = ["AsyncClient", "Client"]

_HOMES = {"AsyncClient": "lastgood.client.calls", "Client": "lastgood.client.sync_client"}


def __getattr__(name: str) -> Any:
    # Imported on first use: commands that only print sessions need the models, but no HTTP client.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
