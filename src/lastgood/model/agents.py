"""What an agent is, once its source has been read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OnUnknown(StrEnum):
    """What to do with a tool call that may or may not have happened before a crash."""

    REPEAT = "repeat"  # calling it twice does no harm
    ASK = "ask"  # a person decides
    FAIL = "fail"  # the model is told that the outcome is unknown


@dataclass(frozen=True, slots=True)
class AgentSpec:
    key: str
    name: str
    model: str
    digest: str  # of the definition: tells which version answered
    description: str = ""
    instruction: str = ""
    title_model: str | None = None
    tools: tuple[str, ...] = ()
    max_iterations: int = 50
