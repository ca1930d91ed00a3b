"""The engine's read-only view of an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastgood.errors import AttemptLost, HistoryDamaged
from lastgood.flows.notes import AgentNotes
from lastgood.model.agents import AgentSpec
from lastgood.model.answers import Answer
from lastgood.model.attempts import Hold, Step, StepKind, said
from lastgood.model.call_options import CallOptions
from lastgood.model.ids import TurnId
from lastgood.model.messages import Message
from lastgood.model.rules import RuleLayer

if TYPE_CHECKING:
    from lastgood.flows.attempt_run import Run


@dataclass(frozen=True, slots=True)
class AttemptWork:
    """The engine's view of an attempt: everything that the prompt may contain."""

    run: Run
    agent: AgentSpec

    @property
    def model(self) -> str:
        return self.run.begun.model

    @property
    def has_chosen_model(self) -> bool:
        asked = self.run.begin.ask.model
        return bool(self.run.begun.session.model if asked is None else asked)

    @property
    def hold(self) -> Hold:
        return self.run.hold

    @property
    def turn(self) -> TurnId:
        return self.run.begun.turn

    @property
    def number(self) -> int:
        return self.run.begun.number

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.run.adopted

    @property
    def answers(self) -> Mapping[str, Answer]:
        return self.run.answers

    @property
    def waited_at(self) -> str | None:
        about_call = (
            place for place, one in self.answers.items() if one.is_about_approval or one.is_about_input
        )
        return next(about_call, self.run.waited_at)

    @property
    def can_ask(self) -> bool:
        """Not in a conversation of the OpenAI-compatible API: its clients cannot answer."""
        return self.run.begun.session.conversation is None

    @property
    def options(self) -> CallOptions:
        return self.run.begin.ask.options

    @property
    def opens_session(self) -> bool:
        """Nothing was said before it, or nothing since a reset."""
        return not self.run.history.settled and not self.run.history.tail

    @property
    def is_followup(self) -> bool:
        return self.run.begin.takes is not None

    @property
    def working_dir(self) -> str | None:
        return self.run.begun.session.working_dir

    async def rules(self) -> tuple[RuleLayer, ...]:
        store = self.run.deps.store
        found = await self.run.through_outage(lambda: store.get_session(self.hold.tenant, self.hold.session))
        if found is None:
            raise AttemptLost()
        return found.rules

    async def steers(self) -> tuple[Step, ...]:
        """Returns the steers in order. A steer is one message, so that its step is one, too."""
        waiting = await self.run.through_outage(lambda: self.run.deps.store.steers_of(self.hold))
        if any(item.is_damaged for item in waiting):
            raise HistoryDamaged(
                f"A steer of session {self.hold.session} does not match its checksum and was not sent to a "
                "model. Delete it from the queue, and send it again",
                session=self.hold.session,
            )
        return tuple(Step(StepKind.STEER, item.messages[0], queued=item.number) for item in waiting)

    @property
    def notes(self) -> AgentNotes:
        return AgentNotes.of(self.run.deps.store, self.hold.tenant, self.agent, self.run.through_outage)

    @property
    def earlier(self) -> tuple[Message, ...]:
        return self.run.history.settled

    def own(self, steps: Sequence[Step]) -> tuple[Message, ...]:
        return self.run.history.answered((*self.run.begin.ask.messages, *said(steps)))
