"""A turn as bars: how long it waited, and each request to a model and each tool call of each attempt at it.

Decides where bars are, in thousandths of the width. Steps that an earlier attempt had finished are marks at
the beginning of the attempt that adopted them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lastgood.core.tool_ledger import adopted_steps
from lastgood.flows.session_reader import AttemptDetails
from lastgood.model.attempts import Attempt, AttemptStatus, Step, StepKind
from lastgood.model.ids import AttemptId
from lastgood.model.tasks import TaskMessage
from lastgood.surfaces.console.text_format import command_of, span

WIDTH = 1000
_LEAST = 3.0  # a bar that is shorter could not be seen
_LEAST_ADOPTED = 9.0  # it stands for a step, not for time, so it must be found
_MOST_TICKS = 4.5
#: Seconds between two marks of the axis, in lengths that people count in.
_ROUND = (
    *(number * unit for unit in (0.001, 0.01, 0.1, 1.0) for number in (1, 2, 5)),
    *(number * unit for unit in (1.0, 60.0) for number in (10, 20, 30, 60)),
    *(number * 3600.0 for number in (2, 6, 12, 24, 48, 168, 336, 720)),
)


@dataclass(frozen=True, slots=True)
class _Scale:
    begins: float
    seconds: float

    def bar(self, start: float, end: float) -> dict[str, float]:
        x = max(min((start - self.begins) / self.seconds, 1.0), 0.0) * WIDTH
        wide = max(min((end - start) / self.seconds, 1.0) * WIDTH, _LEAST)
        return {"x": round(min(x, WIDTH - wide), 1), "width": round(wide, 1)}


def timeline(
    tries: Sequence[AttemptDetails],
    queued_at: float | None,
    now: float,
    answered_by: str = "",
    reported: Mapping[AttemptId, Sequence[TaskMessage]] | None = None,
) -> dict[str, Any]:
    """`answered_by`: the model of the turn that was committed. `reported`: by the runtimes that ran it."""
    attempts = [one.attempt for one in tries]
    begins = min([one.started_at for one in attempts] + ([queued_at] if queued_at is not None else []))
    ends = max(one.ended_at or now for one in attempts)
    scale = _Scale(begins, max(ends - begins, 0.001))
    lanes = []
    if queued_at is not None and attempts[0].started_at > queued_at:
        lanes.append(_lane("queue", "In the queue", queued_at, attempts[0].started_at, scale))
    known: dict[str, tuple[Step, ...]] = {one.attempt.id: one.steps for one in tries}
    for one in tries:
        continued = known.get(one.attempt.continues or "", ())
        said = (reported or {}).get(one.attempt.id, ())
        lanes += _of_attempt(one, adopted_steps(one.steps, continued), scale, now, answered_by, said)
    died = [one for one in attempts if one.status is AttemptStatus.INTERRUPTED]
    return {
        "lanes": lanes,
        "seconds": scale.seconds,
        "ticks": _ticks(scale.seconds),
        "legend": _legend(lanes, is_cut=bool(died)),
        "boundaries": [scale.bar(one.ended_at or now, one.ended_at or now)["x"] for one in died],
    }


def _ticks(seconds: float) -> list[dict[str, Any]]:
    """The marks of the axis: a few round times since the beginning."""
    step = next((one for one in _ROUND if seconds / one <= _MOST_TICKS), _ROUND[-1])
    marks = [number * step for number in range(int(seconds / step + 1e-6) + 1)]
    return [
        {"x": round(min(one / seconds, 1.0) * WIDTH, 1), "label": span(one) if one else "0"} for one in marks
    ]


def _legend(lanes: Sequence[Mapping[str, Any]], *, is_cut: bool) -> list[dict[str, str]]:
    """What the colours mean, of those that are there."""
    kinds = {one["kind"] for one in lanes if not one["is_adopted"]}
    entries = (
        ("of-queue", "in the queue", "queue" in kinds),
        ("of-model", "model", "model" in kinds),
        ("of-tool", "tool", "tool" in kinds),
        ("of-hook", "hook", "hook" in kinds),
        ("of-steer", "message to the running turn", "steer" in kinds),
        ("adopted", "adopted from an earlier attempt", any(one["is_adopted"] for one in lanes)),
        ("of-person", "waits for a person", "person" in kinds),
        ("open", "not finished", any(one["is_open"] for one in lanes)),
        ("of-unfinished", "failed or cut", "unfinished" in kinds),
        ("boundary", "the process ended", is_cut),
    )
    return [{"key": key, "name": name} for key, name, is_there in entries if is_there]


def _of_attempt(
    one: AttemptDetails,
    adopted: int,
    scale: _Scale,
    now: float,
    answered_by: str,
    reported: Sequence[TaskMessage],
) -> list[dict[str, Any]]:
    attempt, end = one.attempt, one.attempt.ended_at or now
    is_open = attempt.ended_at is None
    head = _lane("attempt", f"Attempt {attempt.number}", attempt.started_at, end, scale, is_open=is_open)
    head |= {"id": attempt.id, "status": attempt.status.value, "code": attempt.error_code}
    lanes = [head]
    commands = {
        call.id: (call.name, call.arguments) for step in one.steps for call in step.message.tool_calls
    }
    last = attempt.started_at
    for place, step in enumerate(one.steps):
        if place < adopted:
            lanes.append(_adopted(step, commands, attempt.started_at, scale))
            continue
        if not step.ended_at:
            continue  # of an older journal: nobody knows when it was
        lanes.append(_step(step, commands, step.ended_at - step.seconds, step.ended_at, scale))
        last = step.ended_at
    if reported:
        more, last = _of_reports(attempt, reported, end, scale)
        lanes += more
    lanes.append(_rest(attempt, last, end, scale, answered_by))
    return lanes


def _of_reports(
    attempt: Attempt, messages: Sequence[TaskMessage], end: float, scale: _Scale
) -> tuple[list[dict[str, Any]], float]:
    """A run on a runtime, and when the last of its tool calls began or ended. A message counts from when it
    was reported; what is between two calls is the model's."""
    lanes: list[dict[str, Any]] = []
    calls: dict[str, tuple[int, float]] = {}
    last, before = attempt.started_at, ""
    for message in messages:
        body, at = message.body, max(min(message.created_at, end), last)
        kind, call = str(body.get("type")), str(body.get("call") or message.seq)
        if kind == "tool_use":
            name = str(body.get("tool") or "tool")
            if before != "tool_use":  # several calls at once are of one response
                lanes.append(_lane("model", attempt.model, last, at, scale) | {"detail": f"calls {name}"})
            calls[call] = len(lanes), at
            given = body.get("input")
            detail = "" if given is None else command_of(given)[:200]
            lanes.append(_lane("tool", name, at, end, scale, is_open=True) | {"detail": detail})
            last = at
        elif kind == "tool_result" and call in calls:
            place, began = calls.pop(call)
            done = lanes[place]
            lanes[place] = _lane("tool", done["label"], began, at, scale) | {"detail": done["detail"]}
            last = at
        before = kind
    return lanes, last


def _rest(attempt: Attempt, last: float, end: float, scale: _Scale, answered_by: str) -> dict[str, Any]:
    """After the last finished step: the answer that was committed, or what had not finished."""
    match attempt.status:
        case AttemptStatus.COMMITTED:
            kind, label = "model", answered_by or attempt.model
        case AttemptStatus.WAITING:
            kind, label = "person", "Waits for a person"
        case AttemptStatus.RUNNING:
            kind, label = "model", "In progress"
        case _:
            kind, label = "unfinished", "Not finished"
    made = _lane(kind, label, last, end, scale, is_open=attempt.ended_at is None)
    return made | {"detail": attempt.error_code or ""}


def _adopted(step: Step, commands: dict[str, tuple[str, str]], at: float, scale: _Scale) -> dict[str, Any]:
    """A mark where the attempt begins: the time was spent by an earlier one."""
    lane = _step(step, commands, at, at, scale)
    wide = max(lane["width"], _LEAST_ADOPTED)
    return lane | {"is_adopted": True, "x": min(lane["x"], WIDTH - wide), "width": wide}


def _step(
    step: Step, commands: dict[str, tuple[str, str]], start: float, end: float, scale: _Scale
) -> dict[str, Any]:
    if step.kind is StepKind.TOOL:
        name, arguments = commands.get(step.message.tool_call_id or "", ("tool", ""))
        label, detail = name, command_of(arguments)[:200] if arguments else ""
    elif step.kind is StepKind.MODEL:
        label, detail = step.model or "model", ", ".join(call.name for call in step.message.tool_calls)
        detail = f"calls {detail}" if detail else "answers"
    elif step.kind is StepKind.HOOK:
        label, detail = f"hook {step.hook}", step.ruling
    else:
        label, detail = "message", step.message.content[:200]
    lane = _lane(step.kind.value, label, start, end, scale)
    used = step.usage
    tokens = f"{used.input_tokens:,} → {used.output_tokens:,}" if used.input_tokens else ""
    outcome = step.outcome.value if step.outcome else None
    return lane | {"detail": detail, "tokens": tokens, "outcome": outcome}


def _lane(
    kind: str, label: str, start: float, end: float, scale: _Scale, *, is_open: bool = False
) -> dict[str, Any]:
    return {
        "kind": kind,
        "label": label,
        "detail": "",
        "tokens": "",
        "outcome": None,
        "span": span(max(end - start, 0.0)),
        "is_open": is_open,
        "is_adopted": False,
        **scale.bar(start, max(end, start)),
    }
