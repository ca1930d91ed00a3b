"""Decides what happens to a turn whose process died.

Durable turns are tried again. Other requests are not: their client is disconnected and was promised
nothing. A new attempt adopts the finished steps if head, agent and model are unchanged. Only the
database knows which process is dead; only the tools know whether a call may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lastgood.core.history import open_calls
from lastgood.errors import LastgoodError, StaleHead
from lastgood.model.agents import OnUnknown
from lastgood.model.answers import QuestionKind
from lastgood.model.attempts import Attempt, Interrupted, Step, StepKind, said
from lastgood.model.ids import TurnId
from lastgood.model.messages import ToolCall

#: A turn that kills its server would otherwise do so forever. Restarts and outages of the store say nothing
#: about the turn, so they are not counted.
MOST_DEATHS = 3

#: This many attempts follow one another at once; then each pause is twice as long as the last. A store
#: that takes every begin and refuses every commit (a disk that is nearly full) costs a model call each time.
TRIES_AT_ONCE = 3
FIRST_PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class TryAgain:
    adopt: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A durable turn that can never run: its client must see why."""

    error: LastgoodError


Recovery = TryAgain | Leave | GiveUp


def recover(found: Interrupted, *, digest: str | None, model: str, is_queued: bool = False) -> Recovery:
    """`digest` and `model` are what the turn would run on now; no digest: the agent is not served.

    `is_queued`: the turn is a queue entry, which is durable by itself; the queue limits its attempts.
    """
    attempt = found.attempt
    if not found.request.durable and not is_queued:
        return Leave("its client is gone, and the request was neither answered 202 nor sent with a key")
    if found.deaths >= MOST_DEATHS and not is_queued:
        return Leave(f"the server process died during {found.deaths} of its attempts")
    condition = found.request.condition
    if condition is not None and found.head != condition.head:
        # An edit names the head that it replaces: on another head, it would replace the wrong turns. Other
        # requests name the head that they continue: their client has not seen what was committed since.
        return GiveUp(StaleHead(head=found.head))
    if digest is None:
        return Leave("its agent is not served")
    return try_again(attempt, found.steps, head=found.head, digest=digest, model=model)


def is_due(tried: Attempt, now: float) -> bool:
    """Whether a turn whose last try was interrupted may be tried again already."""
    pauses = tried.number - TRIES_AT_ONCE
    if pauses <= 0 or tried.ended_at is None:
        return True
    pause = min(FIRST_PAUSE_SECONDS * 2 ** min(pauses - 1, 10), LONGEST_PAUSE_SECONDS)
    waited = now - tried.ended_at
    # A clock that was set back must not hold a turn up for as long as it was set back.
    return waited >= pause or waited < 0


def try_again(
    tried: Attempt, steps: Sequence[Step], *, head: TurnId | None, digest: str, model: str
) -> TryAgain:
    """Whether a new try of the same turn adopts the finished steps of `tried`, which has failed or died.

    The same rule for recovery and for a client's retry: finished tools run again only if what they were
    run for has changed.
    """
    if head != tried.head:
        return TryAgain(False, "the head of the session changed, so it restarts from its input")
    if digest != tried.agent_digest:
        return TryAgain(False, "the agent definition changed, so it restarts from its input")
    if model != tried.model:
        return TryAgain(False, "the model changed, so it restarts from its input")
    return TryAgain(True, f"continues after {len(steps)} finished steps")


def has_effects(steps: Sequence[Step], waits_at: str | None = None) -> bool:
    """Whether a tool that is not repeatable has run, or may have: a call without a result may have happened.

    Sending such a request again as a new one runs that tool again, so clients must not retry by themselves.
    `waits_at`: the place of the call that needs approval, in an attempt that waits for it or ended so.
    """
    if any(step.effects for step in steps if step.kind is StepKind.TOOL):
        return True
    return any(_may_have_happened(steps, within, waits_at) for within in {step.within for step in steps})


def _may_have_happened(steps: Sequence[Step], within: str, waits_at: str | None) -> bool:
    """Of one agent's steps: whether a call of its last response is open and must not run twice."""
    own = [step for step in steps if step.within == within]
    responses = [step for step in own if step.kind is StepKind.MODEL]
    if not responses or not responses[-1].effects:
        return False
    calls = open_calls(said(own))
    waiting = not_begun(calls, f"{within}{len(responses)}:", waits_at)
    return any(call.id in responses[-1].effects for call in calls if call not in waiting)


def approval_place(question: Mapping[str, Any] | None) -> str | None:
    """Returns the place of the call that the question is about, if it begins only after the answer."""
    if question is None or question.get("kind") != QuestionKind.APPROVAL:
        return None
    return str(question["place"])


def not_begun(calls: Iterable[ToolCall], prefix: str, waits_at: str | None) -> tuple[ToolCall, ...]:
    """Returns those of one response's calls, in their order, that have not begun because the call at
    `waits_at` needed approval. Calls run one after the other, so none after it has begun.

    `prefix`: what their places begin with. The call at `waits_at` may be of an agent that one of them gave
    its task to: that one has begun.
    """
    if waits_at is None:
        return ()
    found: list[ToolCall] = []
    has_begun = True
    for call in calls:
        place = f"{prefix}{call.id}"
        has_begun = has_begun and place != waits_at
        if not has_begun:
            found.append(call)
        has_begun = has_begun and not waits_at.startswith(f"{place}/")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A tool call from before the crash that has no result: it may or may not have run."""

    call: ToolCall
    policy: OnUnknown


def unsettled(steps: Sequence[Step], policy_of: Callable[[str], OnUnknown]) -> tuple[Unsettled, ...]:
    calls = open_calls(said(steps))
    return tuple(Unsettled(call, policy_of(call.name)) for call in calls)
