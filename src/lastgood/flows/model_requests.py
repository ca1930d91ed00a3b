"""Counts the requests that a run sends to models, so that those without an answer are counted, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from lastgood.model.attempts import Step, StepKind
from lastgood.model.usage import AttemptUse


@dataclass(slots=True)
class ModelRequests:
    """Of one run in this process. Responses in its journal are counted with the journal."""

    open: Counter[str] = field(default_factory=Counter)  # not answered yet, by model
    last: str = ""  # the model that was called last

    def asked(self, model: str) -> None:
        self.open[model] += 1
        self.last = model

    def answered(self, model: str) -> None:
        self.open[model] -= 1
        self.last = model

    def use(self, steps: Sequence[Step] = (), seconds: float | None = None) -> AttemptUse:
        """At the end of the run. `steps`: if the last of them is an answer without tool calls, no journal
        has it."""
        last = steps[-1] if steps else None
        answer = last.usage if last is not None and is_last_answer(last) else None
        return AttemptUse(self.last, answer, 0 if answer is None else 1, {**self.open}, seconds)


def is_last_answer(step: Step) -> bool:
    """Such a step is not journaled: the commit that follows at once stores it."""
    is_final = step.kind is StepKind.MODEL and not step.message.tool_calls
    return is_final and not step.within and not step.hands_to
