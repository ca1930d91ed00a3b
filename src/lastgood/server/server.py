"""A server that runs: its apps, whether it is ready, and its shutdown."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from lastgood.agents.catalog import Catalog
from lastgood.engine.agent_loop import AgentLoop
from lastgood.errors import StoreError
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.surfaces.http.app import App
from lastgood.surfaces.http.metrics import Metrics
from lastgood.tracing.setup import OFF, Asgi, Tracing
from lastgood.wiring import Lastgood

#: How long streams may take to send their last frames.
_LAST_WORDS_SECONDS = 2.0


@dataclass(slots=True)
class Server:
    """`draining`: the server is shutting down. Running turns may finish, and none begins."""

    lastgood: Lastgood
    agents: Catalog
    engine: AgentLoop
    counts: Metrics
    asks_for_token: bool
    grace_seconds: float
    tracing: Tracing = OFF
    draining: bool = False
    _app: App | None = None
    _probes: App | None = None
    _running: AsyncExitStack | None = None

    @property
    def app(self) -> App:
        assert self._app is not None
        return self._app

    @property
    def probes(self) -> App:
        """The app of --metrics-listen: /health, /ready and /metrics only."""
        assert self._probes is not None
        return self._probes

    @property
    def asgi(self) -> Asgi:
        """What is put behind a socket: the app, and what is traced of it."""
        return self.tracing.asgi(self.app)

    def is_draining(self) -> bool:
        return self.draining

    async def why_not_ready(self) -> str | None:
        if self.draining:
            return "the server is shutting down"
        try:
            await self.lastgood.deps.store.get_session(DEFAULT_TENANT, SessionId("nobody"))
        except StoreError as error:
            return error.message
        return await self.lastgood.deps.store.why_not_writable()

    async def finish(self, hurried: asyncio.Event) -> None:
        """Running turns may finish within the grace time, unless `hurried` is set. The rest is interrupted,
        and its clients get an error before their streams end."""
        self.draining = True
        assert self._running is not None
        ends = asyncio.get_running_loop().time() + self.grace_seconds
        hurry = asyncio.create_task(self._hurry(hurried))
        try:
            await self._running.aclose()
            self.app.end_watching()
            # Also for streams that report the outcome of their turns themselves.
            left = ends - asyncio.get_running_loop().time()
            await self.app.until_idle(max(left, _LAST_WORDS_SECONDS))
            self.app.end()
            await self.app.until_idle(_LAST_WORDS_SECONDS)
            # One may have been about to begin when the shutdown started.
            await self.lastgood.live.close(0)
        finally:
            hurry.cancel()

    async def _hurry(self, hurried: asyncio.Event) -> None:
        await hurried.wait()
        await self.lastgood.live.close(0)
        self.app.end()
