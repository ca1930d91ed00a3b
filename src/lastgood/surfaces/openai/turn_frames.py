"""What a turn gives to a chat completion: its text as it comes, and what it is when it has ended."""

from __future__ import annotations

from collections.abc import Iterator

from lastgood.errors import OutcomeUnknown
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.attempts import Step, StepKind
from lastgood.model.events import Event, EventKind, StoredEvent
from lastgood.model.sessions import Turn, Usage
from lastgood.surfaces.openai.completions import Chunks, Finished, finished


def committed_unread(submitted: TurnHandle) -> OutcomeUnknown:
    return OutcomeUnknown(
        "The turn was committed, but the rest of its response could not be read from the database. Do not "
        f"retry; read it with GET /api/sessions/{submitted.session}/turns.",
        session=submitted.session,
        turn=submitted.turn,
    )


def said_before(chunks: Chunks, submitted: TurnHandle) -> Iterator[bytes]:
    """Text of adopted steps: part of the response, and in no event of this attempt."""
    for step in submitted.adopted:
        if step.kind is StepKind.MODEL and not step.within and step.message.content:
            yield chunks.text(step.message.content)
            chunks.response_ended()


def frame_of(chunks: Chunks, event: Event | StoredEvent) -> bytes | None:
    if "agent" in event.data:  # output of a sub-agent
        return None
    match event.kind:
        case EventKind.TEXT_STREAMED:
            return chunks.text(str(event.data["content"]))
        case EventKind.REASONING_STREAMED:
            return chunks.reasoning(str(event.data["content"]))
        case EventKind.MODEL_ANSWERED:
            chunks.response_ended()
            return None
        case _:
            return None


def finished_steps(steps: list[Step]) -> Finished:
    own = [step for step in steps if not step.within]
    usage = sum((step.usage for step in steps), Usage())
    return finished([step.message for step in own], usage, own[-1].cut_short)


def finished_turn(turn: Turn) -> Finished:
    return finished(turn.messages[turn.inputs :], turn.usage, bool(turn.decision.get("cut_short")))
