"""The protocols of agents, and of the engine that works on one attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from lastgood.model.agents import AgentOrigin, AgentSpec
from lastgood.model.answers import Answer
from lastgood.model.attempts import Hold, Step
from lastgood.model.call_options import CallOptions
from lastgood.model.events import Event
from lastgood.model.ids import SessionId, TurnId
from lastgood.model.messages import Message
from lastgood.model.rules import RuleLayer
from lastgood.model.usage import ModelAsked
from lastgood.ports.notes import Notes


class Work(Protocol):
    """The engine's read-only view of an attempt."""

    @property
    def agent(self) -> AgentSpec: ...
    @property
    def model(self) -> str: ...
    @property
    def has_chosen_model(self) -> bool:
        """Whether `model` was chosen for the session or the turn, and is not just the agent's."""
        ...

    @property
    def hold(self) -> Hold: ...
    @property
    def turn(self) -> TurnId: ...
    @property
    def number(self) -> int: ...
    @property
    def steps(self) -> tuple[Step, ...]: ...
    @property
    def answers(self) -> Mapping[str, Answer]:
        """A person's answers about calls, by the place of the call."""
        ...

    @property
    def waited_at(self) -> str | None:
        """The place of a call in `steps` that waited for a person: it has not begun, or has stopped to ask.
        None of the calls after it has begun."""
        ...

    @property
    def can_ask(self) -> bool:
        """Whether approvals are available: some APIs cannot answer them."""
        ...

    @property
    def opens_session(self) -> bool:
        """Whether the conversation begins with this turn, or again after a reset."""
        ...

    @property
    def is_followup(self) -> bool:
        """Whether its input waited in the queue."""
        ...

    @property
    def options(self) -> CallOptions: ...
    @property
    def working_dir(self) -> str | None: ...
    async def rules(self) -> tuple[RuleLayer, ...]:
        """The session's own, as they are now: they may be changed while the turn runs."""
        ...

    async def steers(self) -> tuple[Step, ...]:
        """Returns the steers that are not in its steps yet."""
        ...

    @property
    def notes(self) -> Notes | None:
        """What the agent keeps beyond its sessions; None: nothing."""
        ...

    @property
    def earlier(self) -> tuple[Message, ...]:
        """The conversation before this turn."""
        ...

    def own(self, steps: Sequence[Step]) -> tuple[Message, ...]:
        """The turn's input, and these steps as its continuation. After `earlier`, it is the whole prompt."""
        ...


#: Takes what the engine did. Returns after the journal has the step. What it raises ends the turn.
Emit = Callable[[Event | Step | ModelAsked], Awaitable[None]]


class Engine(Protocol):
    async def run(self, work: Work, emit: Emit) -> None:
        """Works until the turn has its answer. Cancelling it stops its models and tools."""
        ...

    def check_model(self, model: str, agent: AgentSpec | None = None) -> None:
        """Raises ModelUnknown if no provider serves the model and the agent's file does not define it."""
        ...

    def check_working_dir(self, path: str) -> str:
        """The folder as it is recorded; InvalidRequest: no session may work there."""
        ...

    async def title(self, agent: AgentSpec, messages: Sequence[Message]) -> str | None: ...

    def idle_sessions(self) -> Sequence[SessionId]:
        """Those for which programs are kept, and no turn runs here now."""
        ...

    async def forget(self, session: SessionId) -> None:
        """Frees what was built for a session that was deleted."""
        ...


class Agents(Protocol):
    def served(self) -> Sequence[str]:
        """The keys of the sources served now."""
        ...

    def origin(self, key: str) -> AgentOrigin:
        """Where the source with this key is. AgentNotFound: it is not served."""
        ...

    async def load(self, key: str, name: str | None = None) -> AgentSpec:
        """The agent of that source, or the member of its team with that name."""
        ...
