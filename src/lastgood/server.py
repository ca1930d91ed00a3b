"""The composition root of the server: settings in, an app that answers out. Decides nothing."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from lastgood.agents.catalog import Catalog
from lastgood.agents.file_copies import FileCopies
from lastgood.agents.sources import Source
from lastgood.agents.url_source import UrlPolicy
from lastgood.core.client_presets import Preset
from lastgood.core.quotas import Quota
from lastgood.core.token_bucket import Allowance
from lastgood.engine.agent_loop import AgentLoop
from lastgood.errors import InvalidRequest, StoreError, WrongUsage
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.flows.attention import Attention
from lastgood.flows.audit import AuditReader
from lastgood.flows.dependencies import FlowLimits
from lastgood.flows.session_export import SessionImport
from lastgood.flows.stateless_run import EphemeralTurns, StatelessRuns
from lastgood.flows.tokens import Tokens
from lastgood.flows.webhooks import Webhooks
from lastgood.flows.work.access import WorkAccess
from lastgood.flows.work.enrolment import Enrolment
from lastgood.model.agents import Safety
from lastgood.model.ids import DEFAULT_TENANT, SessionId
from lastgood.model.tokens import Scope
from lastgood.outside.env_file import secrets_of
from lastgood.settings import Settings
from lastgood.store.database_url import open_store
from lastgood.surfaces.api.agents import AgentHandlers
from lastgood.surfaces.api.approvals import ApprovalHandlers
from lastgood.surfaces.api.audit import AuditHandlers
from lastgood.surfaces.api.branches import BranchHandlers
from lastgood.surfaces.api.routes import session_routes
from lastgood.surfaces.api.runs import RunHandlers
from lastgood.surfaces.api.sessions import SessionHandlers
from lastgood.surfaces.api.turn_requests import TurnRequests
from lastgood.surfaces.api.webhooks import WebhookHandlers, webhook_routes
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Pages
from lastgood.surfaces.console.routes import console_routes
from lastgood.surfaces.http.access import AccessControl, host_of
from lastgood.surfaces.http.app import AnsweredRequest, App, Route
from lastgood.surfaces.http.loop_monitor import LoopMonitor
from lastgood.surfaces.http.metrics import Metrics
from lastgood.surfaces.http.principal import Principal
from lastgood.surfaces.http.rate_limit import RateLimiter
from lastgood.surfaces.http.session_gate import SessionGate
from lastgood.surfaces.openai.handlers import ChatHandlers
from lastgood.surfaces.routes import DIALECTS, probes, routes
from lastgood.surfaces.work.routes import work_routes
from lastgood.surfaces.work.users import RuntimeHandlers, TaskHandlers, TokenHandlers
from lastgood.surfaces.work.worker import WorkerHandlers
from lastgood.tracing.setup import OFF, Asgi, Tracing, open_tracing
from lastgood.wiring import Lastgood, assemble, build_engine, look_nearby, running

log = logging.getLogger("lastgood.requests")

FindCaller = Callable[[str], Awaitable[Principal | None]]


#: How long streams may take to say their last words.
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
        """What --metrics-listen is for: /health, /ready and /metrics, and nothing else."""
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
        """What runs may finish for the grace time, unless somebody is in a hurry. The rest is interrupted,
        and its clients get an error before their streams end."""
        self.draining = True
        assert self._running is not None
        ends = asyncio.get_running_loop().time() + self.grace_seconds
        hurry = asyncio.create_task(self._hurry(hurried))
        try:
            await self._running.aclose()
            self.app.end_watching()
            # Also for streams that say themselves what became of their turns.
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


@asynccontextmanager
async def open_server(
    settings: Settings, sources: Iterable[Source], host: str, *, ollama: str | None = None
) -> AsyncIterator[Server]:
    """Recovered, with its leases kept alive, until it has finished. `host` is where it listens.

    `ollama`: where to look for one, if not where they all are.
    """
    secrets = secrets_of(settings.env_file, os.environ)
    pulling = UrlPolicy(settings.data_dir / "url_cache", settings.pull_interval, secrets=secrets)
    agents = Catalog(sources, pulling, FileCopies(settings.data_dir / "file_cache"))
    await agents.check_named_files()
    tracing = open_tracing(settings.tracing)
    engine = build_engine(settings, secrets, tracing)
    store = await open_store(settings.database, migrate=settings.migrate)
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
        find_caller = await _find_caller(settings, tokens, host)
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
        server._app, server._probes = _apps(server, settings, tokens, find_caller, host)
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


def _apps(
    server: Server, settings: Settings, tokens: Tokens, find_caller: FindCaller | None, host: str
) -> tuple[App, App]:
    """Everything that is served, and the probes alone."""
    lastgood, counts = server.lastgood, server.counts
    counts.gauges["lastgood_turns_running"] = ("turns running on this server", lambda: lastgood.live.count)
    agents = AgentDirectory(lastgood.deps.agents, lambda agent: server.engine.why_no_answer(agent) is None)
    presets = frozenset(map(Preset, settings.preset))
    limiter = _limiter(settings)
    lastgood.queue.admit_by(limiter.running)
    chat = ChatHandlers(
        agents,
        StatelessRuns(lastgood.deps),
        EphemeralTurns(lastgood.sessions, lastgood.submitter),
        lastgood.submitter,
        lastgood.turns,
        server.is_draining,
        limiter,
        presets,
    )
    counts.gauges["lastgood_http_requests_running"] = (
        "HTTP requests in progress",
        lambda: server.app.running + server.probes.running,
    )
    door = AccessControl(hosts_of(settings, host), origins_of(settings), find_caller, host in _EVERYWHERE)
    listed = routes(
        chat,
        counts,
        server.why_not_ready,
        chat_bytes=settings.max_request_size,
        only=settings.only,
        metrics=settings.metrics_listen is None,
        sessions=_session_routes(server, settings, agents, limiter),
        work=_work_routes(server, tokens, agents),
        console=_console_routes(server, settings, agents, limiter, find_caller),
    )

    def seen(one: AnsweredRequest) -> None:
        counts.request(one)
        _log(one)

    alone = probes(counts, server.why_not_ready)
    return (
        App(listed, door, on_seen=server.tracing.seeing(seen), dialects=DIALECTS),
        App(alone, door, on_seen=seen, dialects=DIALECTS),
    )


def _session_routes(
    server: Server, settings: Settings, agents: AgentDirectory, limiter: RateLimiter
) -> Sequence[Route]:
    lastgood = server.lastgood
    asking = TurnRequests(server.is_draining)
    folders = settings.working_dir_root is not None
    gate = SessionGate(WorkAccess(lastgood.deps.store))
    life = SessionHandlers(
        lastgood.sessions,
        lastgood.submitter,
        SessionImport(lastgood.deps, lastgood.sessions),
        agents,
        asking,
        gate,
        folders=folders,
    )
    runs = RunHandlers(
        lastgood.sessions, lastgood.submitter, lastgood.turns, lastgood.queue, agents, asking, limiter
    )
    branches = BranchHandlers(lastgood.sessions)
    webhooks = WebhookHandlers(Webhooks(lastgood.deps.store, lastgood.deps.clock))
    listed = session_routes(
        life,
        runs,
        AgentHandlers(agents),
        branches,
        ApprovalHandlers(lastgood.approvals),
        AuditHandlers(AuditReader(lastgood.deps)),
        gate,
        import_bytes=settings.max_request_size,
    )
    return [*listed, *webhook_routes(webhooks)]


def _work_routes(server: Server, tokens: Tokens, agents: AgentDirectory) -> Sequence[Route]:
    work, enrolment = server.lastgood.work, Enrolment(server.lastgood.deps, tokens)
    return work_routes(
        WorkerHandlers(work, enrolment, server.is_draining),
        TaskHandlers(work, agents, server.is_draining),
        RuntimeHandlers(work, agents),
        TokenHandlers(tokens, enrolment),
    )


def _console_routes(
    server: Server,
    settings: Settings,
    agents: AgentDirectory,
    limiter: RateLimiter,
    find_caller: FindCaller | None,
) -> Sequence[Route]:
    lastgood = server.lastgood
    access = WorkAccess(lastgood.deps.store)
    flows = ConsoleFlows(
        lastgood.sessions,
        lastgood.submitter,
        lastgood.turns,
        lastgood.queue,
        lastgood.approvals,
        lastgood.work,
        Attention(lastgood.deps, lastgood.approvals, access, lastgood.work.tasks),
        agents,
        limiter,
        server.is_draining,
    )
    pages = Pages(
        SessionGate(access),
        settings.public_url,
        asks_for_token=find_caller is not None,
        only=settings.only,
    )
    return console_routes(pages, flows, find_caller)


def _limiter(settings: Settings) -> RateLimiter:
    return RateLimiter(
        Allowance(settings.token_rate, settings.token_running),
        Allowance(settings.user_rate, settings.user_running),
        time.monotonic,
    )


def _log(seen: AnsweredRequest) -> None:
    """Logs the client, the route and the status of a request; never its content."""
    if seen.route is not None and seen.route.probe:
        return
    fields = {
        "request_id": seen.request.id,
        "method": seen.request.method,
        "route": seen.route.path if seen.route else None,
        "status": seen.status,
        "ended": seen.ended.value,
        "ms": round(seen.seconds * 1000, 1),
        "tenant": seen.request.caller.tenant,
        "caller": seen.request.caller.name,
        "peer": seen.request.peer,
    }
    if seen.request.failure:
        fields["code"] = seen.request.failure
    log.info("request", extra={"fields": fields})


# -- access control ---------------------------------------------------------------------


_EVERYWHERE = ("0.0.0.0", "::")
_TOKEN = re.compile(r"[\x21-\x7e]{16,}")


def hosts_of(settings: Settings, host: str) -> frozenset[str]:
    hosts = {"localhost", "127.0.0.1", "[::1]"}
    for name in settings.allowed_host:
        found = host_of(name)
        if found is None:
            raise WrongUsage(f"--allowed-host must be a host name like agents.example.com, not {name!r}")
        hosts.add(found)
    if host not in _EVERYWHERE:
        hosts.add(host_of(f"[{host}]" if ":" in host else host) or "")
    if settings.public_url:
        hosts.add(host_of(_public(settings.public_url)[1]) or "")
    return frozenset(hosts - {""})


def origins_of(settings: Settings) -> frozenset[str]:
    """Those of others whose pages may ask. A proxy may change the Host of our own pages, so theirs, too."""
    for origin in settings.cors_origin:
        if re.fullmatch(r"https?://[^/?#@]+", origin) is None:
            raise WrongUsage(f"--cors-origin must be an origin like https://example.com, not {origin!r}")
    own = ["://".join(_public(settings.public_url))] if settings.public_url else []
    return frozenset([*settings.cors_origin, *own])


def _public(url: str) -> tuple[str, str]:
    """Its scheme, and its host with the port."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or host_of(parts.netloc) is None:
        raise WrongUsage(f"--public-url must be a URL like https://agents.example.com, not {url!r}")
    return parts.scheme, parts.netloc.lower()


async def _find_caller(settings: Settings, tokens: Tokens, host: str) -> FindCaller | None:
    """Returns None if no token is required: on a loopback address, or with --insecure-no-auth."""
    fixed = _fixed_token(settings)
    if settings.insecure_no_auth and fixed is not None:
        raise WrongUsage("a token and --insecure-no-auth cannot be combined; remove one of them")
    if settings.insecure_no_auth:
        return None
    if fixed is None and not await tokens.list():
        if not is_loopback(host):
            raise InvalidRequest(
                f"{host} is not a loopback address, and there is no token; create one with "
                "`lastgood tokens create`, or use --token-file, --token-env or --insecure-no-auth"
            )
        return None

    async def find(given: str) -> Principal | None:
        if fixed is not None and hmac.compare_digest(given.encode(), fixed.encode()):
            return Principal(DEFAULT_TENANT, "the server's own token", frozenset({Scope.ADMIN}))
        token = await tokens.check(given)
        if token is None:
            return None
        return Principal(token.tenant, token.id, token.scopes, token.user, token.worker)

    return find


def _fixed_token(settings: Settings) -> str | None:
    if settings.token_env is not None and settings.token_file is not None:
        raise WrongUsage("--token-env and --token-file cannot be combined; remove one of them")
    if settings.token_env is not None:
        token, where = os.environ.get(settings.token_env, ""), f"the variable {settings.token_env}"
    elif settings.token_file is not None:
        where = f"the first line of {settings.token_file}"
        try:
            token = settings.token_file.read_text().partition("\n")[0]
        except OSError as error:
            raise InvalidRequest(
                f"cannot read --token-file {settings.token_file}: {error.strerror}"
            ) from None
        except UnicodeDecodeError:
            token = ""
    else:
        return None
    token = token.strip()
    if _TOKEN.fullmatch(token) is None:
        raise InvalidRequest(f"{where} must be a token of at least 16 visible ASCII characters")
    return token


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
