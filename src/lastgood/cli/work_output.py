"""Tasks, runtimes and resume decisions, as text for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from lastgood.cli.output import count, one_line, print_line, when
from lastgood.client.work_models import (
    BindingInfo,
    DiffInfo,
    ExplanationInfo,
    RuntimeInfo,
    TaskInfo,
    TaskMessageInfo,
)
from lastgood.core.runtime_choice import has_deregistered

#: So many characters of what a run did are shown for each message.
_ACTIVITY_CHARACTERS = 200

# -- tasks -----------------------------------------------------------------------------------


def task_line(task: TaskInfo) -> str:
    kind, id = task.scope
    created = when(task.created_at.timestamp())
    about = f"{one_line(task.agent)}  {kind} {one_line(id)}"
    why = f"  {one_line(task.why or _end(task))}" if task.why or task.error_code else ""
    return f"{task.id}  {created}  {task.status:9}  {about}{why}"


def _end(task: TaskInfo) -> str:
    return f"{task.error_code}: {task.error_message or ''}".strip()


def print_task(
    task: TaskInfo, runtimes: Sequence[RuntimeInfo], activity: Sequence[TaskMessageInfo] = ()
) -> None:
    names = {one.id: one.name for one in runtimes}
    kind, id = task.scope
    ended = f", ended {when(task.ended_at.timestamp())}" if task.ended_at else ""
    print_line(f"{task.id}  {task.status}  created {when(task.created_at.timestamp())}{ended}")
    print_line(f"agent {one_line(task.agent)}, {kind} {one_line(id)}, session {task.session}")
    print_line(
        f"runtime {_runtime(task.runtime, names)}" + (f", worker {task.worker}" if task.worker else "")
    )
    for line in _about(task):
        print_line(one_line(line))
    for line in resume_words(task.decision, names, is_done=True):
        print_line(line)
    if task.late_output is not None:
        print_line(f"output that arrived after the end (not committed): {one_line(task.late_output)}")
    if activity:
        print_line(f"\nits newest run reported {count(len(activity), 'message')}:")
    for message in activity:
        print_line(f"  {message.seq:>4}  {_activity(message)}")


def _about(task: TaskInfo) -> Iterator[str]:
    if task.why:
        yield f"why: {task.why}"
    if task.error_code:
        yield f"error: {_end(task)}"
    if task.claims:
        lost = f", lost {count(task.lost_claims, 'time')}" if task.lost_claims else ""
        yield f"claimed {count(task.claims, 'time')}, failed {count(task.failures, 'time')}{lost}"
    if task.cli_version:
        yield f"version of the CLI: {task.cli_version}"
    if task.priority:
        yield f"priority {task.priority}"
    wishes = ["fresh start"] if task.is_fresh else []
    wishes += [f"rerun of {task.rerun_of}"] if task.rerun_of else []
    wishes += [f"note: {task.note}"] if task.note else []
    if wishes:
        yield f"requested: {'; '.join(wishes)}"


def _activity(message: TaskMessageInfo) -> str:
    parts = (message.body.get(name) for name in ("tool", "content", "input", "output"))
    text = one_line(" ".join(str(part) for part in parts if part))
    cut = text if len(text) <= _ACTIVITY_CHARACTERS else text[: _ACTIVITY_CHARACTERS - 1] + "…"
    return f"{message.type}: {cut}"


def print_diff(diff: DiffInfo) -> None:
    for path, change in diff.changes:
        print_line(f"{change:9} {one_line(path)}")
    if not diff.changes:
        print_line("no changes")
    if diff.patch:
        print_line(f"\n{diff.patch.rstrip()}")
    if diff.left_out:
        print_line(f"\nnot uploaded: {count(len(diff.left_out), 'file')}")
    for path, reason in diff.left_out:
        print_line(f"  {one_line(path)}: {one_line(reason)}")
    if diff.is_cut:
        print_line("more was changed than is shown here")


# -- resume decisions ------------------------------------------------------------------------

_DONE = {
    "native": "resumed native session {}",
    "replay": "started a new native session with the transcript of the committed turns",
    "fresh": "started a new native session, without a transcript",
}
_WOULD = {
    "native": "would resume native session {}",
    "replay": "would start a new native session with the transcript of the committed turns",
    "fresh": "would start a new native session, without a transcript",
}


def resume_words(decision: Mapping[str, Any], names: Mapping[str, str], *, is_done: bool) -> Iterator[str]:
    """Nothing if no claim has decided yet. `names`: of runtimes, by id."""
    kind = decision.get("decision")
    if kind is None:
        return
    words = (_DONE if is_done else _WOULD).get(kind, str(kind))
    yield one_line(f"{words.format(decision.get('native_session'))}: {decision.get('reason', '')}")
    if "catch_up_after" in decision:
        yield (
            "  it had missed turns; they are sent along"
            if not is_done
            else "  it got the turns it had missed"
        )
    for one in decision.get("rejected", ()):
        of = f" of runtime {_runtime(one['runtime_id'], names)}" if one.get("runtime_id") else ""
        yield one_line(f"not resumed: native session {one['native_session']}{of}, because {one['reason']}")
    if more := decision.get("rejected_more"):
        yield f"not resumed: {count(more, 'older native session')}"
    work_dir = decision.get("work_dir")
    if work_dir:
        yield one_line(f"working directory: {work_dir['path']} on worker {work_dir['worker'] or '(unknown)'}")
    for text in decision.get("disclosures", ()):
        yield one_line(f"note to the agent: {text}")


def _runtime(id: str, names: Mapping[str, str]) -> str:
    return f"{one_line(names[id])} ({id})" if id in names else id


def print_explanation(found: ExplanationInfo, runtimes: Sequence[RuntimeInfo]) -> None:
    names = {one.id: one.name for one in (*runtimes, found.runtime)}
    print_line(f"runtime {_runtime(found.runtime.id, names)}: {one_line(found.chosen)}")
    if not found.runtime.is_online:
        print_line("it is offline now; a task would wait for it or fail, as the agent's binding says")
    for line in resume_words(found.decision, names, is_done=False):
        print_line(line)
    for name, text in (("transcript", "messages in the transcript"), ("catch_up", "messages to catch up")):
        if found.content.get(name):
            print_line(f"{found.content[name]} {text}")


# -- runtimes --------------------------------------------------------------------------------


def runtime_line(runtime: RuntimeInfo) -> str:
    state = "online" if runtime.is_online else f"offline, {_why_offline(runtime.seen_seconds_ago)}"
    state = f"{state} ({runtime.status})" if runtime.status else state
    shared = f", shared with {', '.join(runtime.shared_with)}" if runtime.shared_with else ""
    owner = f"owner {runtime.owner or '(no name)'}{shared}"
    program = f"{runtime.provider} {runtime.cli_version}".strip()
    parts = (runtime.id, runtime.name, program, f"worker {runtime.worker}", owner, state)
    return "  ".join(map(one_line, parts))


def _why_offline(seconds: float) -> str:
    return "its worker has stopped" if has_deregistered(seconds) else f"last seen {_ago(seconds)} ago"


def _ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# -- for scripts -----------------------------------------------------------------------------


def task_json(task: TaskInfo) -> dict[str, Any]:
    kind, id = task.scope
    error = {"code": task.error_code, "message": task.error_message} if task.error_code else None
    return {
        "id": task.id,
        "number": task.number,
        "status": task.status,
        "why": task.why,
        "agent": task.agent,
        "scope": {"kind": kind, "id": id},
        "session_id": task.session,
        "turn": task.turn,
        "runtime_id": task.runtime,
        "priority": task.priority,
        "directive": {"fresh": task.is_fresh, "rerun_of": task.rerun_of, "note": task.note},
        "held": task.is_held,
        "worker_id": task.worker,
        "attempt": task.attempt,
        "claims": task.claims,
        "failures": task.failures,
        "lost_claims": task.lost_claims,
        "cli_version": task.cli_version,
        "decision": task.decision,
        "late_output": task.late_output,
        "error": error,
        "due_at": _moment(task.due_at),
        "expires_at": _moment(task.expires_at),
        "deadline_at": _moment(task.deadline_at),
        "created_at": _moment(task.created_at),
        "ended_at": _moment(task.ended_at),
    }


def runtime_json(runtime: RuntimeInfo) -> dict[str, Any]:
    return {
        "id": runtime.id,
        "name": runtime.name,
        "provider": runtime.provider,
        "profile": runtime.profile,
        "account": runtime.account,
        "worker_id": runtime.worker,
        "owner": runtime.owner,
        "shared_with": list(runtime.shared_with),
        "cli_version": runtime.cli_version,
        "steerable": runtime.is_steerable,
        "online": runtime.is_online,
        "status": runtime.status,
        "seen_seconds_ago": runtime.seen_seconds_ago,
        "created_at": _moment(runtime.created_at),
    }


def binding_json(binding: BindingInfo) -> dict[str, Any]:
    return {
        "agent": binding.agent,
        "runtime_id": binding.runtime,
        "offline": binding.offline,
        "max_wait_seconds": binding.max_wait_seconds,
        "deadline_seconds": binding.deadline_seconds,
        "max_running": binding.max_running,
        "published": binding.is_published,
        "on_agent_change": binding.on_agent_change,
        "on_dirty": binding.on_dirty,
        "moved": binding.moved,
    }


def explanation_json(found: ExplanationInfo) -> dict[str, Any]:
    return {
        "runtime": runtime_json(found.runtime),
        "chosen": found.chosen,
        "decision": found.decision,
        "content": found.content,
    }


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")
