"""What a turn gives to a chat completion: its text as it comes, and what it is when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lastgood.errors import OutcomeUnknown
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.attempts import Step, StepKind, said
from lastgood.model.events import (
    AttemptStarted,
    Event,
    ModelAnswered,
    ReasoningStreamed,
    StoredEvent,
    TextStreamed,
)
from lastgood.model.sessions import Turn, Usage
from lastgood.surfaces.openai.completions import Chunks, Finished, finished


def committed_unread(submitted: TurnHandle) -> OutcomeUnknown:
    return OutcomeUnknown(
        "The turn was committed, but the rest of its response could not be read from the database. Do not "
        f"retry; read it with GET /api/sessions/{submitted.session}/turns.",
        session=submitted.session,
        turn=submitted.turn,
    )


def answer_differs(submitted: TurnHandle) -> OutcomeUnknown:
    return OutcomeUnknown(
        "The run was tried again after a part of its text was sent, and its new answer begins differently. "
        f"It was committed. Do not retry; read it with GET /api/sessions/{submitted.session}/turns.",
        session=submitted.session,
        turn=submitted.turn,
    )


class TriedAgainText:
    """The text of a turn that may be tried again, on a stream that can take nothing back.

    Text of a later attempt is compared with what was sent, and sent from where that ends. If it differs,
    nothing more is sent: the client would take two half answers for one.
    """

    #: More is not remembered, and so never taken for the same.
    MOST_CHARACTERS = 1_000_000

    def __init__(self) -> None:
        self._sent: list[str] = []
        self._characters = 0
        self._repeats = ""  # of what was sent: what the newest attempt has not said again yet
        self._differs = False

    @property
    def is_whole(self) -> bool:
        """Whether the client has the text of the newest attempt, and nothing else."""
        return not self._differs and not self._repeats

    def left_of(self, event: StoredEvent) -> StoredEvent | None:
        """The event, or what of it the client does not have yet. None: nothing."""
        match event.data:
            case AttemptStarted():
                self._begin_again()
            case TextStreamed(content, None):
                left = self._take(content)
                return replace(event, data=replace(event.data, content=left)) if left else None
            case ReasoningStreamed() if not self.is_whole:
                return None
        return event

    def _begin_again(self) -> None:
        self._repeats = "".join(self._sent)
        self._differs = self._characters > self.MOST_CHARACTERS

    def _take(self, content: str) -> str:
        if self._differs:
            return ""
        again, left = content[: len(self._repeats)], content[len(self._repeats) :]
        if not self._repeats.startswith(again):
            self._differs = True
            return ""
        self._repeats = self._repeats[len(again) :]
        self._characters += len(left)
        if self._characters <= self.MOST_CHARACTERS:
            self._sent.append(left)
        return left


def said_before(chunks: Chunks, submitted: TurnHandle) -> Iterator[bytes]:
    """Text of adopted steps: part of the response, and in no event of this attempt."""
    for step in submitted.adopted:
        if step.kind is StepKind.MODEL and not step.within and step.message.content:
            yield chunks.text(step.message.content)
            chunks.response_ended()


def frame_of(chunks: Chunks, event: Event | StoredEvent) -> bytes | None:
    match event.data:  # with an agent: output of a sub-agent
        case TextStreamed(content, None):
            return chunks.text(content)
        case ReasoningStreamed(content, None):
            return chunks.reasoning(content)
        case ModelAnswered(agent=None):
            chunks.response_ended()
            return None
        case _:
            return None


def finished_steps(steps: list[Step]) -> Finished:
    own = [step for step in steps if not step.within]
    usage = sum((step.usage for step in steps), Usage())
    return finished(said(own), usage, own[-1].cut_short)


def finished_turn(turn: Turn) -> Finished:
    return finished(turn.messages[turn.inputs :], turn.usage, bool(turn.decision.get("cut_short")))
