"""Tasks and runtimes in the local database. Nothing runs here: workers claim tasks from a server."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from lastgood.agents.catalog import Catalog
from lastgood.agents.sources import Source, parse
from lastgood.agents.url_source import UrlPolicy
from lastgood.cli.local import open_here
from lastgood.cli.startup import TENANT, settings_of
from lastgood.cli.work_infos import binding_info, message_info, question_info, runtime_info, task_info
from lastgood.client.work_models import (
    BindingInfo,
    DiffInfo,
    ExplanationInfo,
    QuestionInfo,
    RuntimeInfo,
    TaskInfo,
    TaskList,
    TaskMessageInfo,
    diff_from,
)
from lastgood.errors import InvalidRequest
from lastgood.flows.work.enqueue import Enqueued
from lastgood.flows.work.tasks import NewTaskRequest
from lastgood.model.ids import SessionId, TaskId
from lastgood.model.rules import LOCAL
from lastgood.model.runtimes import AgentBinding, OnAgentChange, OnDirty, OnOffline, OnQueued
from lastgood.model.sessions import ScopeKind, TaskScope
from lastgood.model.tasks import Directive, TaskFilter, TaskStatus
from lastgood.outside.env_file import secrets_of
from lastgood.settings import Settings
from lastgood.store.database_url import open_store
from lastgood.wiring import Lastgood, assemble, build_engine

_MESSAGES = 10_000


@asynccontextmanager
async def open_local_work(args: argparse.Namespace, *, writes: bool) -> AsyncIterator[LocalWork]:
    settings = settings_of(args)
    sources = [parse(reference, settings.aliases) for reference in getattr(args, "agents", None) or ()]
    if writes:
        async with open_here(settings, sources) as app:
            yield LocalWork(app, args.user)
    else:
        async with _reading(settings, sources) as app:
            yield LocalWork(app, args.user)


@asynccontextmanager
async def _reading(settings: Settings, sources: Sequence[Source]) -> AsyncIterator[Lastgood]:
    """Can run beside a server: takes no lock, recovers nothing and starts nothing."""
    store = await open_store(settings.database, read_only=True)
    secrets = secrets_of(settings.env_file, {})
    agents = Catalog(
        sources, UrlPolicy(settings.data_dir / "url_cache", settings.pull_interval, secrets=secrets)
    )
    engine = build_engine(replace(settings, prompt_log=None), secrets)  # no model is called here
    try:
        yield assemble(store, engine, agents)
    finally:
        await store.close()
        await agents.close()
        await engine.close()


class LocalWork:
    def __init__(self, app: Lastgood, user: str) -> None:
        self._agents = app.deps.agents
        self._user = user
        self._tasks = app.work.tasks
        self._runtimes = app.work.runtimes
        self._explainer = app.work.explainer
        self._questions = app.work.questions

    # -- tasks -----------------------------------------------------------------------------

    async def task_page(
        self,
        *,
        limit: int = 50,
        cursor: int | None = None,
        session: str | None = None,
        agent: str | None = None,
        runtime: str | None = None,
        status: str | None = None,
    ) -> TaskList:
        wanted = TaskFilter(
            session=SessionId(session) if session else None,
            agent_key=agent,
            runtimes=(runtime,) if runtime else None,
            statuses=(TaskStatus(status),) if status else (),
        )
        shown, page = await self._tasks.list(TENANT, self._user, wanted, limit=limit, cursor=cursor)
        return TaskList(tuple(map(task_info, shown)), page.next_cursor)

    async def task(self, task: str) -> TaskInfo:
        return task_info(await self._tasks.get(TENANT, TaskId(task), self._user))

    async def add_task(
        self,
        agent: str,
        prompt: str,
        *,
        scope: tuple[str, str],
        runtime: str | None = None,
        working_dir: str | None = None,
        priority: int | None = None,
        fresh: bool = False,
        rerun_of: str | None = None,
        note: str | None = None,
        key: str | None = None,
    ) -> TaskInfo:
        kind, id = scope
        agent = self._key_of(agent)
        source = TaskId(rerun_of) if rerun_of else None
        new = NewTaskRequest(
            TENANT,
            LOCAL.token,
            self._user,
            agent,
            TaskScope(ScopeKind(kind), id),
            prompt,
            runtime,
            priority or 0,
            Directive(fresh, source, note or ""),
            key,
            fingerprint=repr((agent, scope, prompt, runtime, working_dir, priority, fresh, rerun_of, note))
            if key
            else "",
            working_dir=working_dir,
        )
        return await self._queued(await self._tasks.add(new))

    async def cancel_task(self, task: str) -> TaskInfo:
        await self._tasks.cancel(TENANT, TaskId(task), self._user)
        return await self.task(task)

    async def continue_task(self, task: str, *, all: bool = False) -> TaskInfo:
        return task_info(await self._tasks.continue_held(TENANT, TaskId(task), self._user, all=all))

    async def rerun_task(
        self,
        task: str,
        *,
        runtime: str | None = None,
        fresh: bool = False,
        note: str | None = None,
        key: str | None = None,
    ) -> TaskInfo:
        source = (await self._tasks.get(TENANT, TaskId(task), self._user)).task
        new = NewTaskRequest(
            TENANT,
            LOCAL.token,
            self._user,
            source.agent_key,
            source.scope,
            "",
            runtime,
            source.priority,
            Directive(fresh, source.id, note or ""),
            key,
            fingerprint=repr(("rerun", task, runtime, fresh, note)) if key else "",
        )
        return await self._queued(await self._tasks.rerun(new, source))

    async def task_messages(self, task: str, *, after: int = 0) -> tuple[TaskMessageInfo, ...]:
        found = await self._tasks.messages(TENANT, TaskId(task), self._user, after=after, limit=_MESSAGES)
        return tuple(map(message_info, found))

    async def task_diff(self, task: str) -> DiffInfo | None:
        snapshot = await self._tasks.snapshot(TENANT, TaskId(task), self._user)
        if snapshot is None:
            return None
        return diff_from(snapshot.attempt, snapshot.size, snapshot.summary)

    def _key_of(self, agent: str) -> str:
        """An agent is given as its source here, and is served under one key."""
        served = self._agents.served()
        if len(served) != 1:
            raise InvalidRequest(f"{agent!r} holds {len(served)} agents; name the file of one")
        return served[0]

    async def questions(self, task: str) -> tuple[QuestionInfo, ...]:
        shown = await self._tasks.get(TENANT, TaskId(task), self._user)
        found = await self._questions.pending(TENANT, shown.task.session, self._user)
        return tuple(question_info(one) for one in found if one.task == task)

    async def answer_question(
        self, task: str, question: str, *, allowed: bool, reason: str | None = None
    ) -> QuestionInfo:
        answered = await self._questions.answer(
            TENANT, TaskId(task), question, allowed=allowed, reason=reason or "", user=self._user
        )
        return question_info(answered)

    async def _queued(self, queued: Enqueued) -> TaskInfo:
        return await self.task(queued.task.id)

    # -- runtimes --------------------------------------------------------------------------

    async def runtimes(self) -> tuple[RuntimeInfo, ...]:
        return tuple(map(runtime_info, await self._runtimes.list(TENANT, self._user, is_admin=True)))

    async def share_runtime(self, runtime: str, users: Sequence[str]) -> RuntimeInfo:
        return runtime_info(await self._runtimes.share(TENANT, runtime, users, self._user))

    async def remove_runtime(self, runtime: str) -> None:
        await self._runtimes.remove(TENANT, runtime, self._user, is_admin=True)

    async def bind_agent(
        self,
        agent: str,
        runtime: str,
        *,
        queued: str = "keep",
        offline: str | None = None,
        max_wait_seconds: float | None = None,
        deadline_seconds: float | None = None,
        max_running: int | None = None,
        published: bool | None = None,
        on_agent_change: str | None = None,
        on_dirty: str | None = None,
    ) -> BindingInfo:
        new = AgentBinding(TENANT, agent, runtime, bound_by=self._user)
        binding = AgentBinding(
            TENANT,
            agent,
            runtime,
            OnOffline(offline) if offline else new.offline,
            max_wait_seconds or new.max_wait_seconds,
            deadline_seconds or new.deadline_seconds,
            max_running,
            bool(published),
            self._user,
            OnAgentChange(on_agent_change or new.on_agent_change),
            OnDirty(on_dirty or new.on_dirty),
        )
        return binding_info(binding, await self._runtimes.bind(binding, OnQueued(queued), is_admin=True))

    async def unbind_agent(self, agent: str) -> None:
        if not await self._runtimes.unbind(TENANT, agent, self._user, is_admin=True):
            raise InvalidRequest(f"agent {agent!r} is bound to no runtime")

    async def set_runtime(self, session: str, runtime: str | None, *, queued: str = "keep") -> int:
        return await self._runtimes.pin(TENANT, SessionId(session), runtime, OnQueued(queued), self._user)

    async def explain(self, session: str, *, runtime: str | None = None) -> ExplanationInfo:
        found = await self._explainer.explain(TENANT, SessionId(session), self._user, if_moved_to=runtime)
        return ExplanationInfo(runtime_info(found.runtime), found.chosen, found.decision, found.content)
