"""The context windows of models, in tokens: stated by the agent file, or learned from the model's server.

A size is what the server works with, not what the model was trained for: Ollama and llama.cpp cut prompts at
their own limit, which is often smaller. A size that nobody states is 0: unknown, and never guessed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from lastgood.errors import LastgoodError
from lastgood.model.agents import ModelSpec

#: Reads JSON from the server of a model, below its API (`/models`) or at its root. None: no JSON.
Read = Callable[[ModelSpec, str, Mapping[str, Any] | None], Awaitable[Any]]

#: Providers whose list of models states sizes. With a `base_url`, it may be vLLM, llama.cpp or any other.
_STATING = frozenset(
    {"fireworks", "groq", "mistral", "moonshot", "ollama", "openrouter", "requesty", "together", "vercel"}
)
#: OpenRouter and others; Groq, Vercel and Requesty; Mistral; vLLM.
_NAMES = ("context_length", "context_window", "max_context_length", "max_model_len")

#: For how long a size is used. A server may be started again with another one.
_KNOWN_SECONDS = 3600.0
_UNKNOWN_SECONDS = 60.0
_MOST = 1000
#: How many entries of a list of models are read.
_MOST_LISTED = 20_000
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})$", re.MULTILINE)


class ContextSizes:
    """Never waited for: a turn takes what is known when its response arrives."""

    def __init__(self, read: Read, clock: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._clock = clock
        self._known: dict[tuple[str, ...], tuple[float, int]] = {}  # until when, and the size
        self._tasks: set[asyncio.Task[None]] = set()

    def size(self, model: ModelSpec) -> int:
        """Returns 0 if it is unknown; then it is looked up meanwhile, once."""
        if model.context_size is not None:
            return model.context_size
        if model.provider not in _STATING and model.base_url is None:
            return 0
        key = (model.provider, model.base_url or "", model.token_key or "", model.model)
        until, size = self._known.get(key, (0.0, 0))
        if self._clock() >= until:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[key] = self._clock() + _UNKNOWN_SECONDS, size
            task = asyncio.get_running_loop().create_task(self._learn(key, model))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return size

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _learn(self, key: tuple[str, ...], model: ModelSpec) -> None:
        with suppress(LastgoodError):
            size = await (self._ollama(model) if model.provider == "ollama" else self._listed(model))
            seconds = _KNOWN_SECONDS if size else _UNKNOWN_SECONDS
            self._known[key] = self._clock() + seconds, size

    async def _ollama(self, model: ModelSpec) -> int:
        """Of the model as it is loaded, else as it was configured."""
        for one in _entries(await self._read(model, "/api/ps", None), "models"):
            if model.model in (
                one.get("name"),
                one.get("model"),
                str(one.get("name")).removesuffix(":latest"),
            ):
                return _size(one.get("context_length"))
        shown = _mapping(await self._read(model, "/api/show", {"model": model.model}))
        found = _NUM_CTX.search(str(shown.get("parameters") or ""))
        return int(found[1]) if found else 0

    async def _listed(self, model: ModelSpec) -> int:
        for one in _entries(await self._read(model, "models", None), "data"):
            if one.get("id") != model.model:
                continue
            stated = next((size for name in _NAMES if (size := _size(one.get(name)))), 0)
            about = _mapping(one.get("meta"))
            return stated or (await self._llama_cpp(model, about) if about else 0)
        return 0

    async def _llama_cpp(self, model: ModelSpec, about: Mapping[str, Any]) -> int:
        """As it was started; a server that does not say it is taken at what the model was trained for."""
        props = _mapping(await self._read(model, "/props", None))
        running = _mapping(props.get("default_generation_settings"))
        return _size(running.get("n_ctx")) or _size(about.get("n_ctx")) or _size(about.get("n_ctx_train"))


def _entries(listing: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Together sends the list alone."""
    listed = listing if isinstance(listing, list) else _mapping(listing).get(name)
    if not isinstance(listed, list):
        return iter(())
    return (one for one in islice(listed, _MOST_LISTED) if isinstance(one, Mapping))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _size(value: Any) -> int:
    is_size = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31
    return int(value) if is_size else 0
