"""A reporter that keeps what it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lastgood.worker.job import Activity, ActivityType, JobAnswer, JobQuestion


@dataclass
class Recorder:
    """`answer` is what a person says to a question."""

    answer: Callable[[JobQuestion], JobAnswer] = lambda question: JobAnswer(
        False, "nobody was expected to be asked"
    )
    pins: list[str] = field(default_factory=list)
    activities: list[Activity] = field(default_factory=list)
    questions: list[JobQuestion] = field(default_factory=list)

    async def pin(self, native_session: str) -> None:
        self.pins.append(native_session)

    async def activity(self, activity: Activity) -> None:
        self.activities.append(activity)

    async def ask(self, question: JobQuestion) -> JobAnswer:
        self.questions.append(question)
        return self.answer(question)

    def of(self, kind: ActivityType) -> list[Activity]:
        return [one for one in self.activities if one.type is kind]

    def outputs(self) -> list[str]:
        """What tools and errors said, to explain a failed test."""
        return [one.output or one.content for one in self.activities]
