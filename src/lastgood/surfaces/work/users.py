"""Handlers for people: tasks, runtimes, bindings, pointers, enrollments and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lastgood.errors import Forbidden, InvalidRequest, NotFound, ShuttingDown
from lastgood.flows.agent_directory import AgentDirectory
from lastgood.flows.tokens import Tokens
from lastgood.flows.work.assembly import WorkFlows
from lastgood.flows.work.enqueue import Enqueued
from lastgood.flows.work.enrollment import Enroller, check_worker
from lastgood.flows.work.tasks import NewTaskRequest, ShownTask
from lastgood.model.ids import SessionId, TaskId
from lastgood.model.runtimes import AgentBinding, OnAgentChange, OnDirty, OnOffline, OnQueued
from lastgood.model.sessions import ScopeKind, TaskScope
from lastgood.model.tasks import Directive, TaskFilter, TaskStatus
from lastgood.model.tokens import Scope, Token
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.body_parser import parse, whole_number
from lastgood.surfaces.http.resource import timestamp
from lastgood.surfaces.http.turn_headers import fingerprint, key_of, session_of, user_of
from lastgood.surfaces.work.resources import (
    BINDING,
    MESSAGE,
    POINTER,
    QUESTION,
    RUNTIME,
    TASK,
    TOKEN,
)
from lastgood.surfaces.work.schemas import (
    AnswerBody,
    BindBody,
    ContinueTaskBody,
    EnrollmentBody,
    NewTaskBody,
    PinRuntimeBody,
    RerunBody,
    RetireBody,
    ShareBody,
    TokenBody,
)

MOST_IN_PAGE = 200


class TaskHandlers:
    def __init__(self, work: WorkFlows, agents: AgentDirectory, is_draining: Callable[[], bool]) -> None:
        self._work = work
        self._agents = agents
        self._is_draining = is_draining

    async def add(self, request: Request) -> Response:
        if self._is_draining():
            raise ShuttingDown()
        plain = await request.json()
        body = parse(NewTaskBody, plain)
        directive = Directive(
            fresh=bool(body.fresh),
            rerun_of=None if body.rerun_of is None else TaskId(body.rerun_of),
            note=body.note or "",
        )
        new = self._new(
            request,
            plain,
            agent_key=self._agents.canonical_key(body.agent),
            scope=TaskScope(ScopeKind(body.scope.kind), body.scope.id),
            prompt=body.prompt,
            runtime=body.runtime,
            working_dir=body.working_dir,
            priority=body.priority or 0,
            directive=directive,
        )
        return await self._queued(request, await self._work.tasks.add(new))

    async def rerun(self, request: Request) -> Response:
        if self._is_draining():
            raise ShuttingDown()
        plain = await request.json() if await request.body() else {}
        body = parse(RerunBody, plain)
        source = (await self._get(request)).task
        new = self._new(
            request,
            plain,
            agent_key=source.agent_key,
            scope=source.scope,
            prompt="",
            runtime=body.runtime,
            priority=body.priority or 0,
            directive=Directive(bool(body.fresh), source.id, body.note or ""),
        )
        return await self._queued(request, await self._work.tasks.rerun(new, source))

    def _new(self, request: Request, plain: Any, **fields: Any) -> NewTaskRequest:
        caller = request.caller
        return NewTaskRequest(
            tenant=caller.tenant,
            caller=caller.name,
            user=caller.user,
            key=key_of(request),
            fingerprint=fingerprint(request, plain),
            end_user=user_of(request, None),
            **fields,
        )

    async def _queued(self, request: Request, queued: Enqueued) -> Response:
        shown = (await self._work.tasks.shown(request.caller.tenant, (queued.task,)))[0]
        if not queued.is_known:
            return json_reply(TASK.json(shown), 201)
        headers = {"idempotent-replayed": "true"} if queued.is_replay else {}
        return json_reply(TASK.json(shown) | {"replayed": True}, 200, headers)

    async def list(self, request: Request) -> Response:
        query = request.query
        status = query.get("status", "")
        if status and status not in {*TaskStatus}:
            raise InvalidRequest(f"`status` must be one of {', '.join(TaskStatus)}", param="status")
        filter = TaskFilter(
            session=SessionId(query["session"]) if query.get("session") else None,
            agent_key=query.get("agent") or None,
            runtimes=(query["runtime"],) if query.get("runtime") else None,
            statuses=(TaskStatus(status),) if status else (),
        )
        limit = whole_number(query, "limit", 50, least=1, most=MOST_IN_PAGE)
        cursor = whole_number(query, "cursor", None, most=2**62)
        shown, page = await self._work.tasks.list(
            request.caller.tenant, request.caller.user, filter, limit=limit, cursor=cursor
        )
        headers = {} if page.next_cursor is None else {"x-next-cursor": str(page.next_cursor)}
        return json_reply([TASK.json(one) for one in shown], 200, headers)

    async def read(self, request: Request) -> Response:
        return json_reply(TASK.json(await self._get(request)))

    async def cancel(self, request: Request) -> Response:
        """Responds at once: no worker is waited for."""
        tenant = request.caller.tenant
        task = await self._work.tasks.cancel(tenant, _task(request), request.caller.user)
        return json_reply(TASK.json((await self._work.tasks.shown(tenant, (task,)))[0]))

    async def continue_held(self, request: Request) -> Response:
        body = parse(ContinueTaskBody, await request.json() if await request.body() else {})
        shown = await self._work.tasks.continue_held(
            request.caller.tenant, _task(request), request.caller.user, all=bool(body.all)
        )
        return json_reply(TASK.json(shown))

    async def messages(self, request: Request) -> Response:
        after = whole_number(request.query, "after", 0, most=2**53)
        limit = whole_number(request.query, "limit", 200, least=1, most=500)
        found = await self._work.tasks.messages(
            request.caller.tenant, _task(request), request.caller.user, after=after, limit=limit
        )
        return json_reply([MESSAGE.json(one) for one in found])

    async def diff(self, request: Request) -> Response:
        found = await self._work.tasks.snapshot(request.caller.tenant, _task(request), request.caller.user)
        plain = found and {
            "attempt": found.attempt,
            "kind": found.kind,
            "summary": found.summary,
            "bytes": found.size,
        }
        return json_reply({"task": _task(request), "snapshot": plain})

    async def questions(self, request: Request) -> Response:
        shown = await self._get(request)
        found = await self._work.questions.pending(
            request.caller.tenant, shown.task.session, request.caller.user
        )
        return json_reply([QUESTION.json(one) for one in found if one.task == shown.task.id])

    async def answer(self, request: Request) -> Response:
        body = parse(AnswerBody, await request.json())
        answered = await self._work.questions.answer(
            request.caller.tenant,
            _task(request),
            request.path["question"],
            allowed=body.allowed,
            reason=body.reason or "",
            user=request.caller.user,
            token=request.caller.name,
            machine=request.caller.peer,
        )
        return json_reply(QUESTION.json(answered))

    async def _get(self, request: Request) -> ShownTask:
        return await self._work.tasks.get(request.caller.tenant, _task(request), request.caller.user)


class RuntimeHandlers:
    def __init__(self, work: WorkFlows, agents: AgentDirectory) -> None:
        self._work = work
        self._agents = agents

    async def list(self, request: Request) -> Response:
        caller = request.caller
        found = await self._work.runtimes.list(caller.tenant, caller.user, is_admin=_is_admin(request))
        return json_reply([RUNTIME.json(one) for one in found])

    async def read(self, request: Request) -> Response:
        caller = request.caller
        found = await self._work.runtimes.get(
            caller.tenant, request.path["runtime"], caller.user, is_admin=_is_admin(request)
        )
        return json_reply(RUNTIME.json(found))

    async def share(self, request: Request) -> Response:
        body = parse(ShareBody, await request.json())
        caller = request.caller
        found = await self._work.runtimes.share(
            caller.tenant, request.path["runtime"], body.shared_with, caller.user
        )
        return json_reply(RUNTIME.json(found))

    async def remove(self, request: Request) -> Response:
        caller = request.caller
        await self._work.runtimes.remove(
            caller.tenant, request.path["runtime"], caller.user, is_admin=_is_admin(request)
        )
        return json_reply({"status": "removed"})

    async def bind(self, request: Request) -> Response:
        """Without a runtime, the agent runs on this server again. Settings that are left out stay."""
        body = parse(BindBody, await request.json())
        caller, agent = request.caller, self._agents.canonical_key(request.path["agent"])
        runtimes, is_admin = self._work.runtimes, _is_admin(request)
        known = await runtimes.binding(caller.tenant, agent, caller.user, is_admin=is_admin)
        if known is None:  # one that is bound may be served no more
            agent = (await self._agents.resolve(agent))[0].key
        if body.runtime_id is None:
            await runtimes.unbind(
                caller.tenant, agent, caller.user, caller.name, caller.peer, is_admin=is_admin
            )
            return json_reply({"agent": agent, "runtime_id": None})
        old = known or AgentBinding(caller.tenant, agent, body.runtime_id)
        given = body.model_fields_set
        binding = AgentBinding(
            tenant=caller.tenant,
            agent_key=agent,
            runtime=body.runtime_id,
            offline=old.offline if body.offline is None else OnOffline(body.offline),
            max_wait_seconds=body.max_wait_seconds or old.max_wait_seconds,
            deadline_seconds=body.deadline_seconds or old.deadline_seconds,
            max_running=body.max_running if "max_running" in given else old.max_running,
            published=old.published if body.published is None else body.published,
            bound_by=caller.user,
            on_agent_change=OnAgentChange(body.on_agent_change or old.on_agent_change),
            on_dirty=OnDirty(body.on_dirty or old.on_dirty),
        )
        queued = OnQueued(body.queued or "keep")
        moved = await runtimes.bind(binding, queued, caller.name, caller.peer, is_admin=is_admin)
        return json_reply(BINDING.json(binding) | {"moved": moved})

    async def binding(self, request: Request) -> Response:
        caller, agent = request.caller, self._agents.canonical_key(request.path["agent"])
        found = await self._work.runtimes.binding(
            caller.tenant, agent, caller.user, is_admin=_is_admin(request)
        )
        if found is None:
            raise NotFound("This agent is bound to no runtime")
        return json_reply(BINDING.json(found))

    async def pin(self, request: Request) -> Response:
        body = parse(PinRuntimeBody, await request.json())
        caller, session = request.caller, session_of(request)
        moved = await self._work.runtimes.pin(
            caller.tenant,
            session,
            body.runtime_id,
            OnQueued(body.queued or "keep"),
            caller.user,
            caller.name,
            caller.peer,
        )
        return json_reply({"session_id": session, "runtime_id": body.runtime_id, "moved": moved})

    async def explain(self, request: Request) -> Response:
        caller, session = request.caller, SessionId(request.query.get("session", ""))
        if not session:
            raise InvalidRequest("`session` is missing; name the session to explain", param="session")
        runtime = request.query.get("runtime") or None
        found = await self._work.explainer.explain(caller.tenant, session, caller.user, if_moved_to=runtime)
        return json_reply(
            {
                "session_id": session,
                "runtime": RUNTIME.json(found.runtime),
                "chosen": found.chosen,
                "decision": found.decision,
                "content": found.content,
            }
        )

    async def pointers(self, request: Request) -> Response:
        """With what would be decided on each runtime that the caller may use."""
        caller, runtime = request.caller, request.query.get("runtime") or None
        session = await self._work.tasks.session_of_scope(
            caller.tenant, _scope(request), self._agent(request.query.get("agent", "")), caller.user
        )
        found = await self._work.tasks.pointers(caller.tenant, session.id, caller.user, runtime)
        decisions = await self._work.explainer.decisions(session, caller.user, runtime)
        return json_reply(
            {
                "session_id": session.id,
                "pointers": [POINTER.json(one) for one in found],
                "decisions": decisions,
            }
        )

    async def retire(self, request: Request) -> Response:
        body = parse(RetireBody, await request.json())
        caller = request.caller
        session = await self._work.tasks.session_of_scope(
            caller.tenant, _scope(request), self._agent(body.agent), caller.user
        )
        retired = await self._work.tasks.retire(
            caller.tenant, session.id, body.native_session, body.runtime, caller.user
        )
        return json_reply({"status": "retired", "pointers": retired})

    def _agent(self, key: str) -> str:
        if not key:
            raise InvalidRequest("`agent` is missing; a scope has one session per agent", param="agent")
        return self._agents.canonical_key(key)


class TokenHandlers:
    """One-time codes for workers and tokens."""

    def __init__(self, tokens: Tokens, enroller: Enroller) -> None:
        self._tokens = tokens
        self._enroller = enroller

    async def enroll(self, request: Request) -> Response:
        body = parse(EnrollmentBody, await request.json() if await request.body() else {})
        code, made = await self._enroller.create(
            request.caller.tenant, request.caller.user, body.worker_id, body.ttl_seconds
        )
        plain = {"code": code, "worker_id": made.worker, "expires_at": timestamp(made.expires_at)}
        return json_reply(plain, 201)

    async def create(self, request: Request) -> Response:
        """An admin makes tokens for anybody of its tenant; others make worker tokens for themselves."""
        body = parse(TokenBody, await request.json())
        caller, user = request.caller, body.user if body.user is not None else request.caller.user
        if not _is_admin(request) and (set(body.scopes) != {Scope.WORKER.value} or user != caller.user):
            raise Forbidden(
                "Token lacks the scope `admin`; without it, you can create only worker tokens for yourself"
            )
        if body.worker_id is not None:
            check_worker(body.worker_id)
            await self._enroller.check_owner(caller.tenant, body.worker_id, user)
        token, plain = await self._tokens.create(
            body.name,
            caller.tenant,
            body.scopes,
            body.expires_in_seconds,
            user=user,
            worker=body.worker_id,
            by=caller.setter,
        )
        return json_reply(TOKEN.json(token) | {"token": plain}, 201)

    async def list(self, request: Request) -> Response:
        return json_reply([TOKEN.json(one) for one in await self._visible(request)])

    async def revoke(self, request: Request) -> Response:
        id = request.path["token"]
        if id not in {one.id for one in await self._visible(request)}:
            raise NotFound("Token not found; list the tokens to see their ids")
        return json_reply(TOKEN.json(await self._tokens.revoke(id, request.caller.setter)))

    async def _visible(self, request: Request) -> Sequence[Token]:
        """An admin sees the tenant's tokens; others their own worker tokens."""
        caller = request.caller
        found = [one for one in await self._tokens.list() if one.tenant == caller.tenant]
        if _is_admin(request):
            return found
        return [one for one in found if one.user == caller.user and one.scopes == {Scope.WORKER}]


def _task(request: Request) -> TaskId:
    return TaskId(request.path["task"])


def _is_admin(request: Request) -> bool:
    return Scope.ADMIN in request.caller.scopes


def _scope(request: Request) -> TaskScope:
    kind = request.path["kind"]
    if kind not in {*ScopeKind}:
        raise InvalidRequest(f"The kind of a scope must be one of {', '.join(ScopeKind)}")
    return TaskScope(ScopeKind(kind), request.path["id"])
