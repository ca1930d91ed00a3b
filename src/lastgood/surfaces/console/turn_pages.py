"""Pages below a session: an attempt, the timeline of a turn, what the model saw, and the native sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lastgood.core.tool_ledger import adopted_steps
from lastgood.errors import LastgoodError
from lastgood.flows.session_reader import AttemptDetails
from lastgood.model.attempts import AttemptStatus
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.messages import Message
from lastgood.model.sessions import Usage
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.text_format import pretty, resume_words
from lastgood.surfaces.console.timeline import timeline
from lastgood.surfaces.console.views import attempt_view, context_view, message_view, session_view
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.turn_headers import session_of

#: Of the messages that the turn before saw as well, the newest.
MOST_KNOWN = 100
#: Of what a runtime reported, so much is on the timeline of a turn.
_MOST_REPORTED = 200


class TurnPages:
    def __init__(self, flows: ConsoleFlows) -> None:
        self._flows = flows

    async def attempt(self, request: Request) -> Page:
        found = await self._flows.sessions.attempt(
            request.caller.tenant, session_of(request), AttemptId(request.path["attempt"])
        )
        names = {call.id: call.name for step in found.steps for call in step.message.tool_calls}
        steps = [
            {
                "kind": step.kind.value,
                "name": step.model or step.hook or names.get(step.message.tool_call_id or "", ""),
                "within": step.within,
                "outcome": step.outcome.value if step.outcome else None,
                "seconds": step.seconds,
                "has_effects": bool(step.effects),
                "message": message_view(step.message),
                "input_tokens": step.usage.input_tokens,
                "output_tokens": step.usage.output_tokens,
            }
            for step in found.steps
        ]
        session = await self._flows.sessions.get(request.caller.tenant, session_of(request))
        data = {
            "session": session_view(session),
            "attempt": attempt_view(found.attempt),
            "steps": steps,
            "raw_decision": pretty(found.attempt.decision),
        }
        return Page("attempt.html", f"Attempt {found.attempt.number}", data)

    async def turn(self, request: Request) -> Page:
        """All attempts at a turn as bars, with their errors and decisions."""
        tenant, id = request.caller.tenant, TurnId(request.path["turn"])
        session = await self._flows.sessions.get(tenant, session_of(request))
        tries = await self._flows.sessions.tries(session, id)
        asked = await self._flows.sessions.request_of(tenant, id)
        queued_at = await self._flows.sessions.queued_at(session, id)
        is_committed = tries[-1].attempt.status is AttemptStatus.COMMITTED
        done = await self._flows.sessions.turn_of(session, id) if is_committed else None
        model = done.model if done is not None else ""
        said = done.messages[: done.inputs] if done is not None else (asked.messages or () if asked else ())
        used = _used(tries)
        messages_of = self._flows.work.tasks.messages_of
        reported = {
            one.attempt.id: await messages_of(
                tenant, session.id, one.attempt.id, request.caller.user, limit=_MOST_REPORTED
            )
            for one in tries
            if one.attempt.task is not None
        }
        data = {
            "session": session_view(session),
            "turn": {
                "id": id,
                "seq": done.seq if done is not None else None,
                "is_committed": is_committed,
                "asked": message_view(said[-1])["text"] if said else "",
                "author": await self._flows.author(tenant, asked),
                "input_tokens": sum(one.input_tokens for one in used),
                "output_tokens": sum(one.output_tokens for one in used),
                "cost": sum(one.cost for one in used),
            },
            "attempts": [attempt_view(one.attempt) for one in tries],
            "timeline": timeline(tries, queued_at, self._flows.now(), model, reported),
        }
        name = f"turn {done.seq}" if done is not None else "a turn that was not committed"
        return Page("turn.html", f"Timeline of {name}", data)

    async def prompt(self, request: Request) -> Page:
        """With what is new since the turn before it."""
        tenant, id = request.caller.tenant, session_of(request)
        session = await self._flows.sessions.get(tenant, id)
        turn, prompt = await self._flows.sessions.prompt(tenant, id, TurnId(request.path["turn"]))
        messages = [message_view(one) for one in prompt.messages]
        known = 0
        if turn.parent is not None:
            _, before = await self._flows.sessions.prompt(tenant, id, turn.parent)
            earlier = [message_view(one) for one in before.messages]
            known = _common(earlier, messages)
        sizes = [_size(one) for one in prompt.messages]
        whole = sum(sizes) or 1
        shares = [round(100 * size / whole, 1) for size in sizes]
        skipped = max(known - MOST_KNOWN, 0)
        data = {
            "session": session_view(session),
            "turn": {
                "id": turn.id,
                "seq": turn.seq,
                "model": turn.model,
                "digest": turn.agent_digest,
                "input_tokens": turn.usage.input_tokens,
                "context": context_view(turn.decision),
            },
            "left_out": prompt.left_out,
            "messages": [one | {"share": share} for one, share in zip(messages, shares, strict=True)][
                skipped:
            ],
            "known": known - skipped,
            "skipped": skipped,
            "new_share": round(100 * sum(sizes[known:]) / whole, 1),
        }
        return Page("prompt.html", f"What the model saw in turn {turn.seq}", data)

    async def pointers(self, request: Request) -> Page:
        caller, work = request.caller, self._flows.work
        session = await self._flows.sessions.get(caller.tenant, session_of(request))
        found = await work.tasks.pointers(caller.tenant, session.id, caller.user, None)
        try:
            decided = await work.explainer.decisions(session, caller.user, None)
        except LastgoodError as error:  # its agent may be served no more
            decided, problem = [], error.message
        else:
            problem = ""
        data = {
            "session": session_view(session),
            "problem": problem,
            "decisions": [
                {
                    "runtime": one["runtime"],
                    "words": resume_words(one, is_done=False),
                    "rejected": one.get("rejected", []),
                    "disclosures": one.get("disclosures", []),
                }
                for one in decided
            ],
            "pointers": [
                {
                    "number": one.number,
                    "native_session": one.native_session,
                    "runtime": one.runtime.id if one.runtime else None,
                    "worker": one.worker,
                    "work_dir": one.work_dir,
                    "through": one.through,
                    "outcome": one.outcome.value,
                    "is_dirty": one.is_dirty,
                    "retired": one.retired,
                }
                for one in reversed(found)
            ],
        }
        names = {one["runtime_id"]: one["runtime"] for one in decided}
        return Page("pointers.html", "Native sessions", data, more={"names": names})


def _used(tries: Sequence[AttemptDetails]) -> list[Usage]:
    """Of each request to a model, once: what an attempt has adopted was used by an earlier one."""
    steps = {one.attempt.id: one.steps for one in tries}
    used: list[Usage] = []
    for one in tries:
        adopted = adopted_steps(one.steps, steps.get(one.attempt.continues or AttemptId(""), ()))
        before = [step.usage for step in one.steps[:adopted]]
        used.append(
            Usage(
                one.usage.input_tokens - sum(each.input_tokens for each in before),
                one.usage.output_tokens - sum(each.output_tokens for each in before),
                cost=one.usage.cost - sum(each.cost for each in before),
            )
        )
    return used


def _size(message: Message) -> int:
    """In characters: what a model is billed for is proportional to it, more or less."""
    return len(message.content) + sum(len(call.arguments) + len(call.name) for call in message.tool_calls)


def _common(earlier: Sequence[dict[str, Any]], later: Sequence[dict[str, Any]]) -> int:
    """How many messages at the beginning are the same in both prompts."""
    pairs = zip(earlier, later, strict=False)
    return next(
        (number for number, (one, two) in enumerate(pairs) if one != two), min(len(earlier), len(later))
    )
