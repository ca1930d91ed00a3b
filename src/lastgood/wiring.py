"""The composition root: builds everything but the server from the settings. Decides nothing."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from lastgood.core.quotas import NO_QUOTA, Quota, QuotaUsage
from lastgood.errors import InvalidRequest, LastgoodError
from lastgood.flows.approvals import Approvals
from lastgood.flows.conversations import Conversations
from lastgood.flows.dependencies import Dependencies, FlowLimits
from lastgood.flows.heartbeat import heartbeat
from lastgood.flows.history_cache import HistoryCache
from lastgood.flows.queue import Queue
from lastgood.flows.quotas import Quotas
from lastgood.flows.recovery import Recovery
from lastgood.flows.retention import Retention
from lastgood.flows.running_attempts import RunningAttempts
from lastgood.flows.sessions import Sessions
from lastgood.flows.signals import Signals
from lastgood.flows.submit import Submitter
from lastgood.flows.task_queue import TaskQueue
from lastgood.flows.turns import Turns
from lastgood.flows.webhook_delivery import PostResult, WebhookDelivery
from lastgood.flows.webhooks import RECEIVERS
from lastgood.flows.work.assembly import WorkFlows, work_flows
from lastgood.flows.work.enqueue import Enqueuer
from lastgood.flows.work.work_limits import WorkLimits
from lastgood.model.agents import AUTO, Safety
from lastgood.model.ids import AttemptId, SessionId, TaskId, TenantId, TurnId
from lastgood.outside.secrets import Secrets
from lastgood.ports import Clock, Ids, Store
from lastgood.ports.engine import Agents, Engine
from lastgood.settings import Settings
from lastgood.store.database_url import open_store
from lastgood.tracing.setup import OFF, Tracing

if TYPE_CHECKING:
    from lastgood.agents.catalog import Catalog
    from lastgood.agents.sources import Source
    from lastgood.engine.agent_loop import AgentLoop

#: How much longer a model's connection may be silent than the turn that waits for it.
_WATCHDOG_FIRST_SECONDS = 10.0

#: From the connection to the status line of the receiver.
_WEBHOOK_SECONDS = 10.0

# Agents and the engine are imported where they are built: commands that only read sessions need no HTTP
# clients and parsers.


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class RandomIds:
    """128 random bits each. The prefix is for people who read logs."""

    def session(self) -> SessionId:
        return SessionId("ses_" + secrets.token_hex(16))

    def turn(self) -> TurnId:
        return TurnId("turn_" + secrets.token_hex(16))

    def attempt(self) -> AttemptId:
        return AttemptId("att_" + secrets.token_hex(16))

    def task(self) -> TaskId:
        return TaskId("task_" + secrets.token_hex(16))


@dataclass(frozen=True, slots=True)
class Lastgood:
    """All flows over one store."""

    deps: Dependencies
    live: RunningAttempts
    submitter: Submitter
    turns: Turns
    sessions: Sessions
    queue: Queue
    recovery: Recovery
    work: WorkFlows
    approvals: Approvals


def assemble(
    store: Store,
    engine: Engine,
    agents: Agents,
    *,
    limits: FlowLimits | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    node: str | None = None,
    kept: int = 1000,
    safety: Safety = Safety.RESTRICTED,
    retain_seconds: float = 0,
    tenant_quota: Quota = NO_QUOTA,
    token_quota: Quota = NO_QUOTA,
    work_limits: WorkLimits | None = None,
) -> Lastgood:
    """`safety`: no session may have more. `retain_seconds`: zero keeps sessions forever."""
    signals = Signals(store.hint)
    store.on_hint(signals.on_hint)
    deps = Dependencies(
        store=store,
        engine=engine,
        agents=agents,
        clock=clock or SystemClock(),
        ids=ids or RandomIds(),
        node=node or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        histories=HistoryCache(store, kept),
        signals=signals,
        quotas=Quotas(partial(_usage, store), tenant_quota, token_quota),
        limits=limits or FlowLimits(),
    )
    live = RunningAttempts(deps)
    return flows_of(deps, live, safety, retain_seconds, work_limits)


def flows_of(
    deps: Dependencies,
    live: RunningAttempts,
    safety: Safety = Safety.RESTRICTED,
    retain_seconds: float = 0,
    work_limits: WorkLimits | None = None,
) -> Lastgood:
    work_limits = work_limits or WorkLimits()
    sessions = Sessions(deps, live, safety)
    enqueuer = Enqueuer(deps, work_limits, safety)
    submitter = Submitter(deps, live, Conversations(deps, sessions), enqueuer)
    work = work_flows(deps, live, sessions, enqueuer, work_limits, safety)
    turns = Turns(deps, live, submitter, work.tasks)
    queue = Queue(deps, live, turns, TaskQueue(deps, submitter.starter, work.tasks, enqueuer))
    retention = Retention(deps, sessions, retain_seconds) if retain_seconds else None
    recovery = Recovery(deps, live, turns, queue, retention)
    approvals = Approvals(deps, turns, sessions, work.questions)
    return Lastgood(deps, live, submitter, turns, sessions, queue, recovery, work, approvals)


def build_engine(settings: Settings, secrets: Secrets, tracing: Tracing = OFF) -> AgentLoop:
    from lastgood.agents.builtin import SCRIPTED
    from lastgood.engine.agent_loop import AgentLoop
    from lastgood.engine.providers.chat_limits import ChatLimits
    from lastgood.engine.providers.model_references import offline_spec
    from lastgood.engine.providers.provider_table import ProviderTable, unusable_key
    from lastgood.engine.providers.scripted import Scripted
    from lastgood.engine.tools.builtin import first_toolsets, live_toolsets
    from lastgood.engine.tools.command_environment import Environment

    log = file_log(settings.prompt_log) if settings.prompt_log else None
    # Longer than the turn may be silent: its watchdog says so, and not a connection that gives up first.
    limits = ChatLimits(idle_seconds=settings.turn_idle_timeout + _WATCHDOG_FIRST_SECONDS)
    engine = AgentLoop(
        tracing.providers(ProviderTable(secrets, {SCRIPTED: Scripted(log)}, limits=limits)),
        tracing.toolsets(first_toolsets(secrets)),
        live_toolsets(secrets),
        now=time.time,
        safety=Safety(settings.safety),
        work_dirs=settings.work_dirs,
        working_dir_root=settings.working_dir_root,
        scrub=secrets.scrub,
        environment=Environment(os.environ, secrets),
    )
    if (why := unusable_key(secrets)) is not None:
        engine.answer_with(offline_spec(why))
    return engine


async def look_nearby(engine: AgentLoop, agents: Catalog, ollama: str | None = None) -> None:
    """If no key is set and an agent accepts any model, looks for an Ollama on this machine, once."""
    from lastgood.engine.providers.model_references import why_offline
    from lastgood.engine.providers.ollama_discovery import OLLAMA, find_ollama

    if why_offline(engine.any_model) is None:
        return
    for key in agents.served():
        with suppress(LastgoodError):  # reported when a request uses this agent
            agent = await agents.load(key)
            if any(one.model == AUTO for one in (agent, *agent.members.values())):
                found = await find_ollama(ollama or OLLAMA)
                if found is not None:
                    engine.answer_with(found)
                return


def file_log(path: Path) -> Callable[[dict[str, Any]], None]:
    """One line per prompt, in one write each, before the model is called."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise InvalidRequest(f"LASTGOOD_PROMPT_LOG: cannot write {path}: {error.strerror}") from error

    def log(record: dict[str, Any]) -> None:
        os.write(file, orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))

    return log


@asynccontextmanager
async def open_lastgood(settings: Settings, sources: Iterable[Source] = ()) -> AsyncIterator[Lastgood]:
    """A Lastgood for one command: it has recovered, and keeps its leases until the block ends."""
    from lastgood.agents.catalog import Catalog
    from lastgood.agents.url_source import UrlPolicy
    from lastgood.outside.env_file import secrets_of

    secrets = secrets_of(settings.env_file, os.environ)
    policy = UrlPolicy(settings.data_dir / "url_cache", settings.pull_interval, secrets=secrets)
    engine, agents = build_engine(settings, secrets), Catalog(sources, policy)
    store = await open_store(settings.database, migrate=settings.migrate)
    try:
        await look_nearby(engine, agents)
        limits = FlowLimits(idle_seconds=settings.turn_idle_timeout, turn_seconds=settings.turn_timeout)
        app = assemble(store, engine, agents, limits=limits, safety=Safety(settings.safety))
        async with running(app, retries_durable=False):
            yield app
    finally:
        await store.close()
        await agents.close()
        await engine.close()


async def _usage(store: Store, tenant: TenantId) -> dict[str, QuotaUsage]:
    found = await store.usage_of_tenant(tenant)
    return {token: QuotaUsage(sessions, size) for token, (sessions, size) in found.items()}


@asynccontextmanager
async def running(
    app: Lastgood, *, retries_durable: bool = True, grace_seconds: float = 10.0
) -> AsyncIterator[Lastgood]:
    """`retries_durable`: durable turns of dead processes are tried again. Servers do so, commands do not."""
    await app.recovery.at_start()
    async with heartbeat(app.deps.store, app.live.leases, app.live.apply_heartbeat):
        if retries_durable:
            await app.recovery.retry_at_start()
        sweeps = [asyncio.create_task(app.recovery.keep_sweeping(retries_durable=retries_durable))]
        if retries_durable:
            sweeps.append(asyncio.create_task(app.work.sweep.keep_sweeping()))
            delivery = WebhookDelivery(app.deps.store, post_webhook, app.deps.clock)
            sweeps.append(asyncio.create_task(delivery.keep_delivering()))
        try:
            yield app
        finally:
            # First the sweeps, or they would begin again what is interrupted next; the heartbeat to the last.
            for sweep in sweeps:
                await _end_task(sweep)
            await app.live.close(grace_seconds)


async def post_webhook(url: str, body: bytes, headers: Mapping[str, str]) -> PostResult:
    from lastgood.outside.network import EgressError, post

    try:
        status = await post(url, body, headers=headers, timeout_seconds=_WEBHOOK_SECONDS, policy=RECEIVERS)
    except EgressError as error:
        return PostResult(None, str(error))
    return PostResult(status)


async def _end_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
