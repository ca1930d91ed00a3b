"""Calls about work on other machines: tasks, runtimes, pointers, enrollments and tokens.

The calls that a worker makes for itself are not here.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from lastgood.client.models import read, read_all
from lastgood.client.stream import path_of
from lastgood.client.transport import ApiCall, ApiResponse, Transport, escaped, visible, with_query
from lastgood.client.work_models import (
    BindingInfo,
    DiffInfo,
    EnrollmentInfo,
    ExplanationInfo,
    PointerList,
    QuestionInfo,
    RuntimeInfo,
    TaskInfo,
    TaskList,
    TaskMessageInfo,
    TokenInfo,
    binding_of,
    diff_of,
    enrollment_of,
    explanation_of,
    message_of,
    pointers_of,
    question_of,
    runtime_of,
    task_of,
    token_of,
)
from lastgood.errors import NotFound

_PAGE = 200


class WorkCalls:
    _connection: Transport

    # -- tasks -----------------------------------------------------------------------------

    async def tasks(
        self,
        *,
        session: str | None = None,
        agent: str | None = None,
        runtime: str | None = None,
        status: str | None = None,
    ) -> AsyncGenerator[TaskInfo, None]:
        """Yields all tasks, newest first. Pages are requested as needed."""
        cursor: int | None = None
        while True:
            page = await self.task_page(
                limit=_PAGE, cursor=cursor, session=session, agent=agent, runtime=runtime, status=status
            )
            for task in page.tasks:
                yield task
            cursor = page.next_cursor
            if cursor is None:
                return

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
        asked = {
            "limit": limit,
            "cursor": cursor,
            "session": session,
            "agent": agent,
            "runtime": runtime,
            "status": status,
        }
        answer = await self._request(ApiCall("GET", with_query("/api/tasks", asked)))
        after = answer.headers.get("x-next-cursor")
        return TaskList(read_all(task_of, answer.plain), None if after is None else int(after))

    async def task(self, task: str) -> TaskInfo:
        return read(task_of, (await self._request(ApiCall("GET", _task(task)))).plain)

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
        """Queues a task. `scope` is `issue` or `chat` and an id; `chat` takes the id of a session, too.
        `working_dir`: of a new scope, on the machine of its runtime."""
        kind, id = scope
        fields = {
            "runtime": runtime,
            "working_dir": working_dir,
            "priority": priority,
            "fresh": fresh or None,
            "rerun_of": rerun_of,
            "note": note,
        }
        body = {"agent": agent, "scope": {"kind": kind, "id": id}, "prompt": prompt} | _given(fields)
        return await self._queued(ApiCall("POST", "/api/tasks", body, _key(key)))

    async def cancel_task(self, task: str) -> TaskInfo:
        """Returns the task as it has ended, also if the cancel was too late."""
        return await self._queued(ApiCall("POST", _task(task, "cancel")))

    async def continue_task(self, task: str, *, all: bool = False) -> TaskInfo:
        """Queues a task again that is held after a cancel. `all`: every held task of its session."""
        return await self._queued(ApiCall("POST", _task(task, "continue"), {"all": all}))

    async def rerun_task(
        self,
        task: str,
        *,
        runtime: str | None = None,
        fresh: bool = False,
        note: str | None = None,
        key: str | None = None,
    ) -> TaskInfo:
        """Queues the same prompt once more, with the native session and working directory of this task."""
        body = _given({"runtime": runtime, "fresh": fresh or None, "note": note})
        return await self._queued(ApiCall("POST", _task(task, "rerun"), body, _key(key)))

    async def task_messages(self, task: str, *, after: int = 0) -> tuple[TaskMessageInfo, ...]:
        """Returns what the newest run of the task did, after the message with this number."""
        found: list[TaskMessageInfo] = []
        while True:
            path = with_query(_task(task, "messages"), {"after": after, "limit": _PAGE})
            page = read_all(message_of, (await self._request(ApiCall("GET", path))).plain)
            found += page
            if len(page) < _PAGE:
                return tuple(found)
            after = page[-1].seq

    async def task_diff(self, task: str) -> DiffInfo | None:
        """Returns what the task changed in its working directory, or None if that was not uploaded."""
        return read(diff_of, (await self._request(ApiCall("GET", _task(task, "diff")))).plain)

    async def questions(self, task: str) -> tuple[QuestionInfo, ...]:
        """Returns what a running task waits for."""
        return read_all(question_of, (await self._request(ApiCall("GET", _task(task, "questions")))).plain)

    async def answer_question(
        self, task: str, question: str, *, allowed: bool, reason: str | None = None
    ) -> QuestionInfo:
        """Answers a question that a running task waits for."""
        body = {"allowed": allowed} | _given({"reason": reason})
        call = ApiCall("POST", _task(task, "questions", question), body, repeatable=False)
        return read(question_of, (await self._request(call)).plain)

    async def _queued(self, call: ApiCall) -> TaskInfo:
        return read(task_of, (await self._request(call)).plain)

    # -- runtimes --------------------------------------------------------------------------

    async def runtimes(self) -> tuple[RuntimeInfo, ...]:
        return read_all(runtime_of, (await self._request(ApiCall("GET", "/api/runtimes"))).plain)

    async def share_runtime(self, runtime: str, users: Sequence[str]) -> RuntimeInfo:
        """Replaces the users who may use the runtime beside its owner. `*`: every user of the tenant."""
        call = ApiCall("PATCH", f"/api/runtimes/{escaped(runtime)}", {"shared_with": list(users)})
        return read(runtime_of, (await self._request(call)).plain)

    async def remove_runtime(self, runtime: str) -> None:
        """Its sessions keep what they know; the same machine gets the runtime back when it registers."""
        await self._request(ApiCall("DELETE", f"/api/runtimes/{escaped(runtime)}", repeatable=False))

    async def binding(self, agent: str) -> BindingInfo | None:
        """Returns None if the agent is bound to no runtime."""
        try:
            return read(binding_of, (await self._request(ApiCall("GET", _binding(agent)))).plain)
        except NotFound as error:
            if type(error) is not NotFound:  # of an agent or a runtime
                raise
            return None

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
        """Runs the agent on this runtime. `queued`: `keep` or `move` tasks that wait elsewhere."""
        fields = {
            "offline": offline,
            "max_wait_seconds": max_wait_seconds,
            "deadline_seconds": deadline_seconds,
            "max_running": max_running,
            "published": published,
            "on_agent_change": on_agent_change,
            "on_dirty": on_dirty,
        }
        body = {"runtime_id": runtime, "queued": queued} | _given(fields)
        return read(binding_of, (await self._request(ApiCall("PUT", _binding(agent), body))).plain)

    async def unbind_agent(self, agent: str) -> None:
        """The agent runs on the server again, or where its file says."""
        await self._request(ApiCall("PUT", _binding(agent), {"runtime_id": None}))

    async def set_runtime(self, session: str, runtime: str | None, *, queued: str = "keep") -> int:
        """Binds one session alone. None: it follows its agent again. Returns how many queued tasks were
        moved."""
        body = {"runtime_id": runtime, "queued": queued}
        call = ApiCall("PATCH", path_of(session, "runtime"), body)
        return read(lambda plain: int(plain["moved"]), (await self._request(call)).plain)

    async def explain(self, session: str, *, runtime: str | None = None) -> ExplanationInfo:
        """Returns what a claim of the session would resume now, without running anything. `runtime`: as if
        the session were moved there."""
        path = with_query("/api/runtimes/explain", {"session": session, "runtime": runtime})
        return read(explanation_of, (await self._request(ApiCall("GET", path))).plain)

    async def pointers(
        self, scope: tuple[str, str], agent: str, *, runtime: str | None = None
    ) -> PointerList:
        """Returns every native session that is known for the scope and agent, oldest first."""
        path = with_query(_scope(scope, "pointers"), {"agent": agent, "runtime": runtime})
        return read(pointers_of, (await self._request(ApiCall("GET", path))).plain)

    async def retire(
        self, scope: tuple[str, str], agent: str, native_session: str, *, runtime: str | None = None
    ) -> int:
        """The native session is never resumed again. Returns how many pointers changed."""
        body = {"agent": agent, "native_session": native_session} | _given({"runtime": runtime})
        plain = (await self._request(ApiCall("POST", _scope(scope, "pointers", "retire"), body))).plain
        return read(lambda one: int(one["pointers"]), plain)

    # -- tokens ----------------------------------------------------------------------------

    async def enroll(self, *, worker: str | None = None, seconds: float | None = None) -> EnrollmentInfo:
        """Creates a one-time code that a new machine exchanges for a worker token."""
        body = _given({"worker_id": worker, "ttl_seconds": seconds})
        call = ApiCall("POST", "/api/enrollments", body, repeatable=False)
        return read(enrollment_of, (await self._request(call)).plain)

    async def tokens(self) -> tuple[TokenInfo, ...]:
        return read_all(token_of, (await self._request(ApiCall("GET", "/api/tokens"))).plain)

    async def create_token(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        user: str | None = None,
        worker: str | None = None,
        seconds: float | None = None,
    ) -> TokenInfo:
        """The response is the only one that contains the token itself, in `secret`."""
        body = {"name": name, "scopes": list(scopes)} | _given(
            {"user": user, "worker_id": worker, "expires_in_seconds": seconds}
        )
        call = ApiCall("POST", "/api/tokens", body, repeatable=False)
        return read(token_of, (await self._request(call)).plain)

    async def revoke_token(self, id: str) -> TokenInfo:
        call = ApiCall("DELETE", f"/api/tokens/{escaped(id)}")
        return read(token_of, (await self._request(call)).plain)

    async def _request(self, call: ApiCall) -> ApiResponse:
        return await self._connection.call(call)


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _key(key: str | None) -> dict[str, str]:
    """Without a caller's key, a random one makes retries safe."""
    return {"idempotency-key": secrets.token_hex(16) if key is None else visible(key, "the key")}


def _task(task: str, *more: str) -> str:
    return "/".join(("/api/tasks", escaped(task), *map(escaped, more)))


def _binding(agent: str) -> str:
    return f"/api/agents/{escaped(agent)}/runtime"


def _scope(scope: tuple[str, str], *more: str) -> str:
    return "/".join(("/api/scopes", *map(escaped, scope), *more))
