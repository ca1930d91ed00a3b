"""Questions that wait for a person: all of them, those of one session, and the answer.

Only a form decides: links are opened by previews. A click counts for exactly the question that was shown:
if it is another one by now, nothing is decided and the new one is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from lastgood.core.approval import Confirmation
from lastgood.core.visible_text import visible
from lastgood.errors import InvalidRequest, LastgoodError, NothingPending, RuntimeNotFound
from lastgood.flows.approvals import Approver, PendingQuestion
from lastgood.flows.attention import MOST_WAITING
from lastgood.model.audit import AuditRecord
from lastgood.model.ids import TaskId
from lastgood.model.sessions import Session
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.elicitation_form import content_of
from lastgood.surfaces.console.forms import Done
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.text_format import command_of, moment
from lastgood.surfaces.console.views import fingerprint, question_view, session_view
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.principal import ANYBODY, Principal
from lastgood.surfaces.http.turn_headers import session_of

_WORDS = tuple(Confirmation)


class ApprovalPages:
    def __init__(self, flows: ConsoleFlows) -> None:
        self._flows = flows

    async def list(self, request: Request) -> Page:
        caller = request.caller
        found = await self._flows.attention.questions(caller.tenant, caller.user)
        data = {
            "waiting": [
                {
                    "session": session_view(one.session),
                    "questions": [await self._listed(request, one.session, asked) for asked in one.questions],
                }
                for one in found
            ],
            "is_more": len(found) >= MOST_WAITING,
        }
        return Page("approvals.html", "Approvals", data)

    async def _listed(self, request: Request, session: Session, asked: PendingQuestion) -> dict[str, Any]:
        """A task or session that is deleted meanwhile must not take the list away."""
        try:
            return await asked_view(self._flows, request, session, asked)
        except LastgoodError:
            return question_view(asked, session)

    async def show(self, request: Request) -> Page:
        caller = request.caller
        session = await self._flows.sessions.get(caller.tenant, session_of(request))
        found = await self._flows.approvals.pending(caller.tenant, session.id, caller.user)
        views = [await asked_view(self._flows, request, session, one) for one in found]
        data = {
            "session": session_view(session),
            "questions": views,
            "decided": [_decision(one) for one in await self._flows.sessions.decisions(session)],
        }
        return Page("approval.html", "Approval", data)

    async def decide(self, request: Request, fields: Mapping[str, str]) -> Done:
        caller, session = request.caller, session_of(request)
        if fields.get("answer") not in _WORDS:
            raise InvalidRequest(f"`answer` must be one of {', '.join(_WORDS)}", param="answer")
        pending = await self._flows.approvals.pending(caller.tenant, session, caller.user)
        asked = next((one for one in pending if one.id == fields.get("question")), None)
        if asked is None or fingerprint(asked) != fields.get("same"):
            raise NothingPending(
                "This question is not pending any more, so nothing was decided; "
                "open the session to see what is pending now"
            )
        confirmation = Confirmation(fields["answer"])
        is_form = confirmation is Confirmation.ACCEPT and asked.question.get("url") is None
        await self._flows.approvals.answer(
            session,
            confirmation,
            Approver(caller.tenant, caller.name, caller.user, caller.setter),
            reason=fields.get("reason", ""),
            content=content_of(asked.question.get("schema"), fields) if is_form else None,
            question=asked.id,
        )
        return Done(f"/sessions/{session}")


def _decision(record: AuditRecord) -> dict[str, Any]:
    """Who decided what: the user of the token, else the token."""
    about, who = record.entry.detail, record.entry.user or record.entry.actor or "nobody"
    return {
        "who": "somebody without a token" if who == ANYBODY.name else visible(who),
        "decision": str(about.get("decision", "")),
        "tool": visible(str(about.get("tool") or "")),
        "command": command_of(about["arguments"]) if about.get("arguments") is not None else "",
        "said": visible(str(about.get("said") or "")),
        "at": moment(record.at),
    }


async def asked_view(
    flows: ConsoleFlows, request: Request, session: Session, asked: PendingQuestion
) -> dict[str, Any]:
    """With what a person has to know before saying yes: the machine, the directory and the requester."""
    caller = request.caller
    turn = asked.turn and await flows.sessions.request_of(caller.tenant, asked.turn)
    name = partial(flows.authors.name, caller.tenant)
    requester = (await name(turn.user, turn.caller) if turn else "") or session.owner
    machine, folder = "this server", session.working_dir
    own = f"work/{session.id} in the server's data directory"
    if asked.task is not None:
        machine, folder, requester = await _run_of(flows, caller, session, asked.task)
        own = "the session's own directory on that machine"
    return question_view(asked, session) | {
        "machine": visible(machine),
        "folder": visible(folder or own),
        "requester": visible(requester) or "a caller without a token",
    }


async def _run_of(
    flows: ConsoleFlows, caller: Principal, session: Session, id: TaskId
) -> tuple[str, str | None, str]:
    """The machine, the directory and the requester of the run that asks: of its task, because the session
    may have been moved to another runtime since it was claimed."""
    task = (await flows.work.tasks.get(caller.tenant, id, caller.user)).task
    reported = await flows.work.tasks.pointers(caller.tenant, session.id, caller.user, task.runtime)
    own = next((one.work_dir for one in reversed(reported) if one.attempt == task.attempt), None)
    resumed = task.decision.get("work_dir")
    is_there = isinstance(resumed, Mapping) and resumed.get("worker") == task.worker
    folder = own or session.working_dir or (str(resumed["path"]) if resumed and is_there else None)
    try:
        found = await flows.work.runtimes.get(caller.tenant, task.runtime, caller.user, is_admin=False)
    except RuntimeNotFound:  # it was removed while it runs
        machine = f"{task.runtime} ({task.worker})"
    else:
        machine = f"{found.name} ({found.identity.worker})"
    return machine, folder, await flows.authors.name(caller.tenant, task.user, task.created_by)
