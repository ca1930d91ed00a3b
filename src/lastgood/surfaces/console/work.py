"""Work on runtimes: tasks by state with the reason why they wait, and the runtimes."""

from __future__ import annotations

from collections.abc import Mapping

from lastgood.errors import InvalidRequest
from lastgood.model.ids import TaskId
from lastgood.model.tasks import TaskFilter, TaskStatus
from lastgood.model.tokens import Scope
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.forms import Done
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.task_views import activity_views, diff_view, patch_lines
from lastgood.surfaces.console.text_format import pretty
from lastgood.surfaces.console.views import runtime_view, task_view
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.body_parser import whole_number

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
        data = {
            "task": task_view(shown),
            "decision": pretty(shown.task.decision) if shown.task.decision else "",
            "messages": activity_views(messages),
            "next_after": messages[-1].seq if len(messages) == _MOST_MESSAGES else None,
            "is_first": not after,
            "diff": diff,
        }
        return Page(
            "task.html", "Task", data, more={"patch": list(patch_lines(diff["patch"])) if diff else []}
        )

    async def cancel(self, request: Request, fields: Mapping[str, str]) -> Done:
        id = TaskId(request.path["task"])
        await self._flows.work.tasks.cancel(request.caller.tenant, id, request.caller.user)
        return Done(f"/work/tasks/{id}")

    async def continue_held(self, request: Request, fields: Mapping[str, str]) -> Done:
        id = TaskId(request.path["task"])
        await self._flows.work.tasks.continue_held(request.caller.tenant, id, request.caller.user, all=False)
        return Done(f"/work/tasks/{id}")
