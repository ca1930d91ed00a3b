"""A request for a turn, and what the pipeline of `submit.py` learns about it on the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self

from lastgood.flows.task_start import WHEN_IDLE, TaskWishes
from lastgood.flows.turn_handle import TurnHandle
from lastgood.model.attempts import After, Ask
from lastgood.model.ids import SessionId
from lastgood.model.messages import Message
from lastgood.model.rules import LOCAL, Setter
from lastgood.model.sessions import Session

#: The session of an ask that names a conversation instead.
NOT_LOCATED = SessionId("")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A session by its client's own name, and a request body of which only a part is new."""

    name: str
    body: tuple[Message, ...]
    reconciles: bool = False  # the body is compared with the history; else only its end counts
    setter: Setter = LOCAL  # who makes the session, if it is not there


@dataclass(frozen=True, slots=True)
class Submission:
    """One request for a turn. With a conversation, the pipeline finds the session and the messages of
    `ask`."""

    ask: Ask
    after: After | None = None  # after the head: appended; after an earlier turn: an edit
    conversation: Conversation | None = None
    wishes: TaskWishes = WHEN_IDLE  # for a turn that is queued for a runtime

    @property
    def can_be_known(self) -> bool:
        """Whether the client may have sent the same request before."""
        return self.ask.key is not None or self.ask.is_retry


class Reservation(AbstractContextManager[Any], Protocol):
    """A reservation of the rate limit. Returned when its block ends, unless a turn has begun."""

    def __enter__(self) -> Self: ...

    def until_ended(self, handle: TurnHandle) -> None: ...


#: TooManyRequests: the rate limit is reached.
Reserve = Callable[[], Reservation]


@dataclass(frozen=True, slots=True)
class Draft:
    """A submission on its way through the steps: what is known of its session and its ask by now."""

    submission: Submission
    ask: Ask
    session: Session
    unbound_agent: str | None = None  # an agent that had no binding when the session was read
