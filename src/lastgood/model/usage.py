"""Usage: model calls by user, agent and model, with their outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lastgood.model.sessions import Usage


@dataclass(frozen=True, slots=True)
class ModelAsked:
    """A request was sent to a model. Whether it is answered shows later, if at all."""

    model: str


@dataclass(frozen=True, slots=True)
class AttemptUse:
    """What an attempt used beside the steps of its journal: those are counted when they are stored."""

    model: str = ""  # the last one that was called; "": the attempt's own
    answer: Usage | None = None  # of the last answer, which is stored with its turn and in no journal
    calls: int = 0  # requests for that answer; 0: a runtime made them, and nobody counted
    unanswered: Mapping[str, int] = field(default_factory=dict)  # requests without a response, by model
    seconds: float | None = None  # of work; None: since the attempt began


#: An attempt without a model call, or one of which nothing more is known.
NO_USE = AttemptUse()


class UsageDimension(StrEnum):
    USER = "user"
    AGENT = "agent"
    RUNTIME = "runtime"
    MODEL = "model"


class UsageStep(StrEnum):
    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """`turns` and `failures` are attempts that were committed, and that failed or were interrupted; the rest
    was cancelled or superseded. `calls`: requests to models, answered or not."""

    attempts: int = 0
    turns: int = 0
    failures: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    slowest: float = 0.0

    def __add__(self, other: UsageCounts) -> UsageCounts:
        return UsageCounts(
            self.attempts + other.attempts,
            self.turns + other.turns,
            self.failures + other.failures,
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost + other.cost,
            self.seconds + other.seconds,
            max(self.slowest, other.slowest),
        )


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """From hour `since` to before hour `until`, both since the epoch, in steps of so many hours. `by`: a row
    for each value of it; None: one row for each step. `only`: just what has these values."""

    since: int
    until: int
    step: int
    by: UsageDimension | None = None
    only: Mapping[UsageDimension, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageRow:
    hour: int  # at which the step begins
    name: str  # the value of the dimension; "" without one
    counts: UsageCounts
