"""The composition root of the server: builds the app from the settings. Decides nothing."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

from lastgood.agents.catalog import Catalog
from lastgood.agents.file_copies import FileCopies
from lastgood.agents.sources import Source
from lastgood.agents.url_source import UrlPolicy
from lastgood.core.quotas import Quota
from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.tokens import Tokens
from lastgood.flows.work.task_tokens import TaskTokens
from lastgood.model.agents import Safety
from lastgood.outside.env_file import secrets_of
from lastgood.server.access_policy import caller_lookup
from lastgood.server.apps import build_apps
from lastgood.server.server import Server
from lastgood.settings import Settings
from lastgood.store.database_url import open_store
from lastgood.surfaces.http.loop_monitor import LoopMonitor
from lastgood.surfaces.http.metrics import Metrics
from lastgood.tracing.setup import open_tracing
from lastgood.wiring import assemble, build_engine, look_nearby, running


@asynccontextmanager
async def open_server(
    settings: Settings,
    sources: Iterable[Source],
    host: str,
    *,
    address: str = "",
    ollama: str | None = None,
) -> AsyncIterator[Server]:
    """A recovered server whose leases are kept until the block ends. `host` is the address that it listens
    on, and `address` the URL of it. `ollama`: where to look for an Ollama, if not at its default address.
    """
    secrets = secrets_of(settings.env_file, os.environ)
    policy = UrlPolicy(settings.data_dir / "url_cache", settings.pull_interval, secrets=secrets)
    agents = Catalog(sources, policy, FileCopies(settings.data_dir / "file_cache"))
    await agents.check_named_files()
    tracing = open_tracing(settings.tracing)
    engine = build_engine(settings, secrets, tracing)
    store = await open_store(settings.database, migrate=settings.migrate, address=address)
    try:
        lastgood = assemble(
            store,
            tracing.engine(engine),
            agents,
            limits=_limits(settings),
            kept=settings.conversations_max,
            safety=Safety(settings.safety),
            retain_seconds=settings.retain,
            tenant_quota=Quota(settings.tenant_sessions, settings.tenant_bytes),
            token_quota=Quota(settings.token_sessions, settings.token_bytes),
        )
        tracing.follow(lastgood.live)
        tokens = Tokens(store, lastgood.deps.clock)
        find_caller = await caller_lookup(settings, tokens, TaskTokens(store), host)
        counts, watch = Metrics(), LoopMonitor()
        counts.gauges["lastgood_event_loop_lag_seconds"] = (
            "longest time the event loop was blocked in the last 30 to 60 seconds",
            lambda: watch.lag_seconds,
        )
        counts.counters["lastgood_event_loop_stalls_total"] = (
            "times the event loop was blocked for more than 250 ms",
            lambda: watch.stalls,
        )
        server = Server(
            lastgood, agents, engine, counts, find_caller is not None, settings.shutdown_grace, tracing
        )
        server._app, server._probes = build_apps(server, settings, tokens, find_caller, host)
        lastgood.live.on_ended(lambda outcome: counts.turns.update([outcome.status.value]))
        await look_nearby(engine, agents, ollama)
        async with watch.watching(), AsyncExitStack() as server._running:
            await server._running.enter_async_context(
                running(lastgood, grace_seconds=settings.shutdown_grace)
            )
            yield server
    finally:
        await store.close()
        await agents.close()
        await engine.close()
        await tracing.close()


def _limits(settings: Settings) -> FlowLimits:
    return FlowLimits(
        idle_seconds=settings.turn_idle_timeout,
        turn_seconds=settings.turn_timeout,
        grace_seconds=settings.disconnect_grace,
        input_bytes=settings.max_request_size,
    )
