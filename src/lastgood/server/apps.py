"""The apps of the server: the handlers of every surface, built from the flows and the settings."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lastgood.core.client_presets import Preset
from lastgood.core.token_bucket import Allowance
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.flows.attention import Attention
from lastgood.flows.audit import AuditReader
from lastgood.flows.authors import Authors
from lastgood.flows.session_export import SessionImport
from lastgood.flows.stateless_run import EphemeralTurns, StatelessRuns
from lastgood.flows.stream_tickets import StreamTickets
from lastgood.flows.tokens import Tokens
from lastgood.flows.usage import UsageReader
from lastgood.flows.webhooks import Webhooks
from lastgood.flows.work.enrollment import Enroller
from lastgood.flows.work.visibility import WorkAccess
from lastgood.server.access_policy import EVERYWHERE, FindCaller, hosts_of, origins_of
from lastgood.server.request_log import log_request
from lastgood.server.server import Server
from lastgood.settings import Settings
from lastgood.surfaces.api.agents import AgentHandlers
from lastgood.surfaces.api.approvals import ApprovalHandlers
from lastgood.surfaces.api.audit import AuditHandlers
from lastgood.surfaces.api.branches import BranchHandlers
from lastgood.surfaces.api.routes import session_routes
from lastgood.surfaces.api.runs import RunHandlers
from lastgood.surfaces.api.session_fields import FieldHandlers
from lastgood.surfaces.api.sessions import SessionHandlers
from lastgood.surfaces.api.tickets import TicketHandlers
from lastgood.surfaces.api.turn_requests import TurnRequests
from lastgood.surfaces.api.usage import UsageHandlers
from lastgood.surfaces.api.webhooks import WebhookHandlers, webhook_routes
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Pages
from lastgood.surfaces.console.routes import console_routes
from lastgood.surfaces.http.access import AccessControl
from lastgood.surfaces.http.app import AnsweredRequest, App, Route
from lastgood.surfaces.http.openapi import openapi
from lastgood.surfaces.http.rate_limit import RateLimiter
from lastgood.surfaces.http.session_gate import SessionGate
from lastgood.surfaces.openai.handlers import ChatHandlers
from lastgood.surfaces.routes import DIALECTS, probes, routes
from lastgood.surfaces.work.routes import work_routes
from lastgood.surfaces.work.users import RuntimeHandlers, TaskHandlers, TokenHandlers
from lastgood.surfaces.work.worker_handlers import WorkerHandlers


def build_apps(
    server: Server, settings: Settings, tokens: Tokens, find_caller: FindCaller | None, host: str
) -> tuple[App, App]:
    """Everything that is served, and the probes alone."""
    lastgood, counts = server.lastgood, server.counts
    counts.gauges["lastgood_turns_running"] = ("turns running on this server", lambda: lastgood.live.count)
    agents = AgentDirectory(
        lastgood.deps.agents,
        lambda agent: server.engine.why_no_answer(agent) is None,
        lambda: server.engine.any_model.ref,
    )
    presets = frozenset(map(Preset, settings.preset))
    limiter = _limiter(settings)
    lastgood.queue.admit_by(limiter.running)
    chat = ChatHandlers(
        agents,
        StatelessRuns(lastgood.deps, lastgood.live),
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
    tickets = StreamTickets(lastgood.deps)
    access = AccessControl(
        hosts_of(settings, host),
        origins_of(settings),
        find_caller,
        host in EVERYWHERE,
        tickets,
        settings.proxy_user_header.lower() if settings.proxy_user_header else None,
    )
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
        log_request(one)

    alone = probes(counts, server.why_not_ready)
    return (
        App(listed, access, on_seen=server.tracing.seeing(seen), dialects=DIALECTS),
        App(alone, access, on_seen=seen, dialects=DIALECTS),
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
        FieldHandlers(lastgood.sessions, agents),
        runs,
        AgentHandlers(agents),
        branches,
        ApprovalHandlers(lastgood.approvals),
        AuditHandlers(AuditReader(lastgood.deps.store)),
        UsageHandlers(UsageReader(lastgood.deps)),
        TicketHandlers(lastgood.sessions, StreamTickets(lastgood.deps)),
        gate,
        import_bytes=settings.max_request_size,
    )
    return [*listed, *webhook_routes(webhooks)]


def _work_routes(server: Server, tokens: Tokens, agents: AgentDirectory) -> Sequence[Route]:
    work, enroller = server.lastgood.work, Enroller(server.lastgood.deps, tokens)
    return work_routes(
        WorkerHandlers(work, enroller, server.is_draining),
        TaskHandlers(work, agents, server.is_draining),
        RuntimeHandlers(work, agents),
        TokenHandlers(tokens, enroller),
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
    attention = Attention(lastgood.deps, lastgood.approvals, access, lastgood.work.tasks)
    flows = ConsoleFlows(
        lastgood.sessions,
        lastgood.submitter,
        lastgood.turns,
        lastgood.queue,
        lastgood.approvals,
        lastgood.work,
        attention,
        Authors(lastgood.deps.store),
        agents,
        UsageReader(lastgood.deps),
        lastgood.deps.clock.now,
        limiter,
        server.is_draining,
    )
    pages = Pages(
        SessionGate(access),
        settings.public_url,
        asks_for_token=find_caller is not None,
        only=settings.only,
        count_questions=attention.count_questions,
    )
    return console_routes(pages, flows, find_caller, lambda: openapi(server.app.routes, DIALECTS))


def _limiter(settings: Settings) -> RateLimiter:
    return RateLimiter(
        Allowance(settings.token_rate, settings.token_running),
        Allowance(settings.user_rate, settings.user_running),
        time.monotonic,
    )
