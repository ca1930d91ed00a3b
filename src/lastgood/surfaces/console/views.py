"""Sessions, turns, attempts, questions and runtimes as the pages show them: plain values, also as JSON."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from lastgood.core.runtime_choice import has_deregistered, is_offline
from lastgood.core.visible_text import visible
from lastgood.flows.approvals import PendingQuestion
from lastgood.flows.task_queue import QueuedTask
from lastgood.flows.work.tasks import ShownTask
from lastgood.model.attempts import Attempt, AttemptStatus
from lastgood.model.messages import File, Image, Message, Part, Role
from lastgood.model.queue import Queued
from lastgood.model.runtimes import Runtime
from lastgood.model.sessions import Branch, Session, Turn
from lastgood.surfaces.console.elicitation_form import fields_of
from lastgood.surfaces.console.text_format import ago, command_of, decisions, moment, resume_words, span

#: A message on a page is cut after so many characters; the API has all of it.
MOST_CHARACTERS = 20_000


def session_view(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "title": session.title or _scope_title(session) or "Untitled session",
        "has_title": bool(session.title),
        "agent": session.agent_key,
        "model": session.model,
        "status": session.status.value,
        "attempt": session.attempt,
        "turns": session.turns,
        "head": session.head.turn if session.head else None,
        "input_tokens": session.usage.input_tokens,
        "output_tokens": session.usage.output_tokens,
        "cost": session.usage.cost,
        "created": moment(session.created_at),
        "updated": moment(session.updated_at),
        "starred": session.starred,
        "conversation": session.conversation,
        "owner": session.owner,
        "working_dir": session.working_dir,
        "runtime": session.runtime_id,
        "scope": {"kind": session.scope.kind.value, "id": session.scope.id} if session.scope else None,
        "forked_from": _fork(session),
        "last_event": session.last_event_seq,
        "first_event": session.events_dropped,
    }


def _scope_title(session: Session) -> str:
    return f"{session.scope.kind.value} {session.scope.id}" if session.scope else ""


def _fork(session: Session) -> dict[str, Any] | None:
    if session.forked_from is None:
        return None
    return {"session": session.forked_from[0], "turn": session.forked_from[1]}


# -- messages ----------------------------------------------------------------------------


def message_view(message: Message) -> dict[str, Any]:
    text, left_out = _cut(_text(message))
    return {
        "role": message.role.value,
        "text": text,
        "left_out": left_out,
        "reasoning": message.reasoning.text if message.reasoning else "",
        "tool_call_id": message.tool_call_id,
        "calls": [
            {"id": call.id, "name": call.name, "arguments": _cut(call.arguments)[0]}
            for call in message.tool_calls
        ],
    }


def _text(message: Message) -> str:
    return "\n".join(map(_part, message.parts)) if message.parts else message.content


def _part(part: Part) -> str:
    match part:
        case str():
            return part
        case Image(url):
            return f"[image: {'embedded' if url.startswith('data:') else url}]"
        case File(name):
            return f"[file: {name}]"


def _cut(text: str) -> tuple[str, int]:
    return text[:MOST_CHARACTERS], max(len(text) - MOST_CHARACTERS, 0)


def with_results(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Each tool call with its result, so that a reader sees one thing and not two."""
    views = [message_view(message) for message in messages]
    results = {view["tool_call_id"]: view for view in views if view["role"] == Role.TOOL.value}
    calls = {call["id"] for view in views for call in view["calls"]}
    for view in views:
        for call in view["calls"]:
            result = results.get(call["id"])
            call["result"] = result["text"] if result is not None else None
    return [view for view in views if view["role"] != Role.TOOL.value or view["tool_call_id"] not in calls]


# -- turns and attempts ------------------------------------------------------------------


def turn_view(turn: Turn, author: str = "") -> dict[str, Any]:
    return {
        "id": turn.id,
        "seq": turn.seq,
        "parent": turn.parent,
        "attempt": turn.attempt,
        "kind": turn.kind.value,
        "user": turn.user,
        "author": author,
        "model": turn.model,
        "agent": turn.agent_key,
        "digest": turn.agent_digest,
        "input_tokens": turn.usage.input_tokens,
        "output_tokens": turn.usage.output_tokens,
        "cost": turn.usage.cost,
        "created": moment(turn.created_at),
        "inputs": with_results(turn.messages[: turn.inputs]),
        "outputs": with_results(turn.messages[turn.inputs :]),
        "context": context_view(turn.decision),
        "decisions": decisions(turn.decision),
        "damage": turn.damage,
        "seconds": None,
    }


def context_view(decision: Mapping[str, Any]) -> dict[str, Any] | None:
    """How much of the model's context window the last response of a turn has used. None: not known."""
    tokens, size = decision.get("context_tokens"), decision.get("context_size")
    if not isinstance(tokens, int) or not isinstance(size, int) or size < 1:
        return None
    exact = 100 * tokens / size
    percent = round(exact, 1) if exact < 10 and exact != round(exact) else round(exact)
    level = "full" if percent >= 95 else "high" if percent >= 80 else ""
    return {"tokens": tokens, "size": size, "percent": percent, "level": level}


def attempt_view(attempt: Attempt) -> dict[str, Any]:
    seconds = None if attempt.ended_at is None else max(attempt.ended_at - attempt.started_at, 0.0)
    return {
        "id": attempt.id,
        "turn": attempt.turn,
        "number": attempt.number,
        "status": attempt.status.value,
        "code": attempt.error_code,
        "message": attempt.error_message or "",
        "model": attempt.model,
        "base": attempt.base,
        "task": attempt.task,
        "continues": attempt.continues,
        "started": moment(attempt.started_at),
        "span": None if seconds is None else span(seconds),
        "decisions": decisions(attempt.decision),
        "request_id": attempt.request_id,
        "is_open": attempt.status in (AttemptStatus.RUNNING, AttemptStatus.WAITING),
    }


def branch_view(branch: Branch) -> dict[str, Any]:
    return {
        "head": branch.head,
        "turns": branch.seq,
        "after": branch.after,
        "replaced_by": branch.replaced_by,
        "created": moment(branch.created_at),
    }


def queue_view(entry: Queued | QueuedTask, author: str = "") -> dict[str, Any]:
    if isinstance(entry, Queued):
        return {
            "id": entry.number,
            "kind": entry.kind.value,
            "text": "\n".join(_text(message) for message in entry.messages),
            "parked": entry.parked,
            "failures": entry.failures,
            "session": entry.session,
            "author": author,
            "why": entry.parked or "waits until the session is free",
        }
    return {
        "id": entry.number,
        "kind": "followup",
        "text": "\n".join(_text(message) for message in entry.messages),
        "parked": entry.why if entry.task.held else None,
        "failures": entry.task.failures,
        "session": entry.task.session,
        "author": author,
        "why": entry.why,
    }


# -- questions, tasks, runtimes ----------------------------------------------------------


def question_view(asked: PendingQuestion, session: Session) -> dict[str, Any]:
    """A person decides about what is on the page, so nothing in it is invisible."""
    question = asked.question
    arguments = question.get("arguments", question.get("input"))
    return {
        "id": asked.id,
        "attempt": asked.attempt,
        "turn": asked.turn,
        "task": asked.task,
        "kind": question["kind"],
        "tool": visible(question.get("tool") or ""),
        "arguments": arguments,
        "command": command_of(arguments) if arguments is not None else "",
        "agent": visible(_agent_of(session.agent_key, question.get("agent") or "")),
        "reason": visible(question.get("reason") or question.get("title") or ""),
        "message": visible(question.get("message") or ""),
        "schema": question.get("schema"),
        "fields": fields_of(question.get("schema")),
        "url": visible(question.get("url") or ""),
        "deadline": moment(asked.deadline_at),
        "same": fingerprint(asked),
    }


def _agent_of(key: str, name: str) -> str:
    """The agent as it is served, with the one of its team that asks."""
    return f"{key} ({name})" if key and name not in ("", "root") else key or name


def fingerprint(asked: PendingQuestion) -> str:
    """Of everything a person saw: a click counts only for exactly this question."""
    plain: Mapping[str, Any] = {"id": asked.id, "attempt": asked.attempt, "question": dict(asked.question)}
    return hashlib.sha256(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)).hexdigest()


def task_view(shown: ShownTask) -> dict[str, Any]:
    task = shown.task
    return {
        "id": task.id,
        "status": "held" if task.held else task.status.value,
        "why": shown.why,
        "agent": task.agent_key,
        "scope": {"kind": task.scope.kind.value, "id": task.scope.id},
        "session": task.session,
        "runtime": task.runtime,
        "worker": task.worker,
        "claims": task.claims,
        "failures": task.failures,
        "held": task.held,
        "code": task.error_code,
        "message": task.error_message or "",
        "resume": resume_words(task.decision) if task.decision.get("decision") else "",
        "created": moment(task.created_at),
        "ended": moment(task.ended_at),
        "span": None if task.ended_at is None else span(max(task.ended_at - task.created_at, 0.0)),
        "turn": task.turn,
        "is_open": task.ended_at is None,
    }


def _seen(seconds: float) -> str:
    return (
        "its worker has stopped"
        if has_deregistered(seconds)
        else f"seen {ago(time.time() - max(seconds, 0.0))}"
    )


def runtime_view(runtime: Runtime) -> dict[str, Any]:
    return {
        "id": runtime.id,
        "name": runtime.name,
        "provider": runtime.identity.provider,
        "worker": runtime.identity.worker,
        "account": runtime.identity.account,
        "owner": runtime.owner,
        "shared_with": list(runtime.shared_with),
        "online": not is_offline(runtime),
        "seen": _seen(runtime.seen_seconds_ago),
        "status": runtime.status,
        "cli_version": runtime.cli_version,
    }
