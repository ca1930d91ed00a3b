"""Work on runtimes: tasks by state with the reason why they wait, and the runtimes."""

from __future__ import annotations

from collections.abc import Mapping

from lastgood.errors import InvalidRequest, LastgoodError
from lastgood.flows.work.tasks import NewTaskRequest
from lastgood.model.ids import TaskId
from lastgood.model.tasks import Directive, TaskFilter, TaskStatus
from lastgood.model.tokens import Scope
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.forms import Done, form_key
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.task_views import activity_views, diff_view, patch_lines
from lastgood.surfaces.console.text_format import pretty, short
from lastgood.surfaces.console.views import message_view, runtime_view, task_view
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.body_parser import whole_number
from lastgood.surfaces.http.principal import Principal
from lastgood.surfaces.http.turn_headers import fingerprint

_IN_PAGE = 50
_MOST_MESSAGES = 200


class WorkPages:
    def __init__(self, flows: ConsoleFlows) -> None:
        self._flows = flows

    async def show(self, request: Request) -> Page:
        caller, query, work = request.caller, request.query, self._flows.work
        status = query.get("status", "")
        if status and status not in {*TaskStatus}:
            raise InvalidRequest(f"`status` must be one of {', '.join(TaskStatus)}", param="status")
        shown, page = await work.tasks.list(
            caller.tenant,
            caller.user,
            TaskFilter(statuses=(TaskStatus(status),) if status else ()),
            limit=_IN_PAGE,
            cursor=whole_number(query, "cursor", None, most=2**62),
        )
        runtimes = await work.runtimes.list(caller.tenant, caller.user, is_admin=caller.may(Scope.ADMIN))
        data = {
            "tasks": [task_view(one) for one in shown],
            "next_cursor": page.next_cursor,
            "status": status,
            "runtimes": [runtime_view(one) for one in runtimes],
            "is_first": "cursor" not in query,
        }
        names = {one.id: one.name for one in runtimes}
        return Page("work.html", "Work", data, more={"statuses": [*TaskStatus], "names": names})

    async def task(self, request: Request) -> Page:
        caller, tasks, id = request.caller, self._flows.work.tasks, TaskId(request.path["task"])
        shown = await tasks.get(caller.tenant, id, caller.user)
        after = whole_number(request.query, "after", 0, least=0, most=2**53)
        messages = await tasks.messages(caller.tenant, id, caller.user, after=after, limit=_MOST_MESSAGES)
        snapshot = await tasks.snapshot(caller.tenant, id, caller.user)
        diff = diff_view(snapshot) if snapshot is not None else None
        names = await self._names(caller)
        try:
            asked = await tasks.input_of(shown.task)
        except LastgoodError:
            asked = ()
        prompt = "\n".join(message_view(one)["text"] for one in asked)
        known = names.get(shown.task.runtime, short(shown.task.runtime))
        data = {
            "task": task_view(shown) | {"prompt": prompt, "runtime_name": known},
            "decision": pretty(shown.task.decision) if shown.task.decision else "",
            "messages": activity_views(messages),
            "next_after": messages[-1].seq if len(messages) == _MOST_MESSAGES else None,
            "is_first": not after,
            "diff": diff,
        }
        patch = list(patch_lines(diff["patch"])) if diff else []
        title = f"Task of {shown.task.agent_key}"
        return Page("task.html", title, data, more={"patch": patch, "names": names})

    async def _names(self, caller: Principal) -> dict[str, str]:
        """Of the runtimes that the caller may see."""
        is_admin = caller.may(Scope.ADMIN)
        listed = await self._flows.work.runtimes.list(caller.tenant, caller.user, is_admin=is_admin)
        return {one.id: one.name for one in listed}

    async def rerun(self, request: Request, fields: Mapping[str, str]) -> Done:
        """The same prompt once more. A form that is sent twice queues one task."""
        self._flows.check_open()
        caller, tasks, id = request.caller, self._flows.work.tasks, TaskId(request.path["task"])
        source = (await tasks.get(caller.tenant, id, caller.user)).task
        new = NewTaskRequest(
            tenant=caller.tenant,
            caller=caller.name,
            user=caller.user,
            agent_key=source.agent_key,
            scope=source.scope,
            prompt="",
            directive=Directive(rerun_of=source.id),
            key=form_key(fields),
            fingerprint=fingerprint(request, {"rerun": source.id}),
            end_user=caller.user,
        )
        queued = await tasks.rerun(new, source)
        return Done(f"/work/tasks/{queued.task.id}")

    async def cancel(self, request: Request, fields: Mapping[str, str]) -> Done:
        id = TaskId(request.path["task"])
        await self._flows.work.tasks.cancel(request.caller.tenant, id, request.caller.user)
        return Done(f"/work/tasks/{id}")

    async def continue_held(self, request: Request, fields: Mapping[str, str]) -> Done:
        id = TaskId(request.path["task"])
        await self._flows.work.tasks.continue_held(request.caller.tenant, id, request.caller.user, all=False)
        return Done(f"/work/tasks/{id}")
