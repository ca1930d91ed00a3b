"""Derives the ledger of tool calls from the journals of attempts: what was called, with which key, and its
outcome. It is not stored separately. A call is in the journal before it runs, and its result after it; a call
without a result in an attempt that has ended may have happened, unless the attempt ended while the call or
one before it waited for approval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lastgood.core.recovery import approval_place, not_begun
from lastgood.model.attempts import Attempt, Step, StepKind, ToolOutcome
from lastgood.model.ids import AttemptId, TurnId
from lastgood.model.messages import ToolCall


@dataclass(frozen=True, slots=True)
class ToolEffect:
    """`key` is the same in every attempt at the turn. `adopted`: an earlier attempt ran it, and its result
    was kept. `outcome` is None while it runs or waits."""

    key: str
    turn: TurnId
    attempt: AttemptId
    call: str
    tool: str
    arguments_digest: str
    outcome: ToolOutcome | None
    seconds: float
    adopted: bool
    rewritten: bool = False  # by a hook; the digest is of the arguments that it ran with


def ledger(attempt: Attempt, steps: Sequence[Step], adopted: int = 0) -> tuple[ToolEffect, ...]:
    """`adopted`: so many of the steps were finished by an earlier attempt."""
    return tuple(_effects(attempt, steps, adopted))


def _effects(attempt: Attempt, steps: Sequence[Step], adopted: int) -> Iterator[ToolEffect]:
    responses: dict[str, int] = {}  # by stage: a sub-agent counts its own
    for place, step in enumerate(steps):
        if step.kind is not StepKind.MODEL:
            continue
        number = responses[step.within] = responses.get(step.within, 0) + 1
        prefix = f"{step.within}{number}:"
        waiting = not_begun(step.message.tool_calls, prefix, approval_place(attempt.unanswered))
        for call in step.message.tool_calls:
            found = _result_of(call.id, steps[place + 1 :], step.within)
            ran = _ran_as(call, steps[place + 1 :], step.within)
            result, at = (None, 0) if found is None else (found[1], place + 1 + found[0])
            outcome = result.outcome if result else None
            if result is None and attempt.ended_at is not None:
                outcome = ToolOutcome.DENIED if call in waiting else ToolOutcome.UNKNOWN
            yield ToolEffect(
                key=f"{attempt.turn}:{prefix}{call.id}",
                turn=attempt.turn,
                attempt=attempt.id,
                call=call.id,
                tool=call.name,
                arguments_digest=ran.arguments_digest,
                outcome=outcome,
                seconds=result.seconds if result else 0.0,
                adopted=result is not None and at < adopted,
                rewritten=ran.arguments != call.arguments,
            )


def _ran_as(call: ToolCall, steps: Sequence[Step], within: str) -> ToolCall:
    """The call as hooks left it. Looks no further than to its result: some providers use an id again."""
    for step in steps:
        if step.within != within:
            continue
        if step.kind is StepKind.MODEL or step.message.tool_call_id == call.id:
            break
        if step.kind is StepKind.HOOK:
            for one in step.message.tool_calls:
                if one.id == call.id:
                    return one
    return call


def _result_of(call: str, steps: Sequence[Step], within: str) -> tuple[int, Step] | None:
    """Before the next response of the same stage: some providers use an id again."""
    for place, step in enumerate(steps):
        if step.within != within:
            continue
        if step.kind is StepKind.MODEL:
            return None
        if step.kind is StepKind.TOOL and step.message.tool_call_id == call:
            return place, step
    return None


@dataclass(frozen=True, slots=True)
class RetryPreview:
    """What a retry keeps and repeats. `repeats`: calls without a result whose tools may run twice. `unknown`:
    calls that may have taken effect; their tool's rule decides, or a person."""

    kept_responses: int
    kept: tuple[ToolCall, ...]
    repeats: tuple[ToolCall, ...]
    unknown: tuple[ToolCall, ...]


def retry_preview(steps: Sequence[Step], waits_at: str | None = None) -> RetryPreview:
    """`waits_at`: as in `recovery.has_effects`. A retry adopts all finished steps and asks the
    model from there on."""
    kept: list[ToolCall] = []
    repeats: list[ToolCall] = []
    unknown: list[ToolCall] = []
    responses = [(place, step) for place, step in enumerate(steps) if step.kind is StepKind.MODEL]
    numbers: Counter[str] = Counter()
    for place, step in responses:
        numbers[step.within] += 1
        waiting = not_begun(step.message.tool_calls, f"{step.within}{numbers[step.within]}:", waits_at)
        for call in step.message.tool_calls:
            if _result_of(call.id, steps[place + 1 :], step.within) is not None:
                kept.append(call)
            else:
                may_have_run = call.id in step.effects and call not in waiting
                (unknown if may_have_run else repeats).append(call)
    return RetryPreview(len(responses), tuple(kept), tuple(repeats), tuple(unknown))


def adopted_steps(steps: Sequence[Step], continued: Sequence[Step]) -> int:
    """How many of an attempt's first steps are those of the attempt that it continues."""
    count = 0
    for mine, theirs in zip(steps, continued, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
