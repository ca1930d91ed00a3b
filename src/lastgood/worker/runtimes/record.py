"""What one run has shown so far, and the reports about it, in bounded size.

Every kind reports through here, so that limits, counts and the wording of failures are the same for all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson

from lastgood.worker.job import (
    Activity,
    ActivityType,
    FailureCode,
    Job,
    JobFailed,
    JobResult,
    JobUsage,
    Reporter,
)
from lastgood.worker.runtimes.failures import code_of, retry_after_in

ACTIVITY_CHARACTERS = 16_000
RAW_CHARACTERS = 2_000
RAW_EVENTS = 50
MESSAGE_CHARACTERS = 2_000


class RunRecord:
    def __init__(self, reporter: Reporter, cli_version: str) -> None:
        self._reporter = reporter
        self._raw_events = 0
        self.cli_version = cli_version
        self.tool_calls = 0
        self.native_session: str | None = None
        self.usage = JobUsage()

    async def pin(self, native_session: str) -> None:
        if native_session != self.native_session:
            self.native_session = native_session
            await self._reporter.pin(native_session)

    async def text(self, content: str) -> None:
        if content:
            await self._reporter.activity(Activity(ActivityType.TEXT, bounded(content)))

    async def thinking(self, content: str) -> None:
        if content:
            await self._reporter.activity(Activity(ActivityType.THINKING, bounded(content)))

    async def error(self, content: str) -> None:
        await self._reporter.activity(Activity(ActivityType.ERROR, bounded(content)))

    async def tool_use(self, tool: str, given: Any, call: str) -> None:
        self.tool_calls += 1
        await self._reporter.activity(
            Activity(ActivityType.TOOL_USE, tool=tool, call=call, input=bounded_input(given))
        )

    async def tool_result(self, tool: str, output: str, call: str) -> None:
        activity = Activity(ActivityType.TOOL_RESULT, tool=tool, call=call, output=bounded(output))
        await self._reporter.activity(activity)

    async def unknown(self, event: Any) -> None:
        """Keeps an event that the kind does not know, so that nothing a newer CLI says is lost."""
        self._raw_events += 1
        if self._raw_events <= RAW_EVENTS:
            raw = event if isinstance(event, str) else _json(event)
            await self.error(f"Unknown event of the CLI: {bounded(raw, RAW_CHARACTERS)}")

    def failed(self, code: FailureCode, message: str, **more: Any) -> JobFailed:
        return JobFailed(
            code,
            bounded(message, MESSAGE_CHARACTERS),
            native_session=self.native_session,
            tool_calls=self.tool_calls,
            cli_version=self.cli_version,
            **more,
        )

    def failed_by_text(self, message: str, otherwise: FailureCode = FailureCode.CLI_FAILED) -> JobFailed:
        code = code_of(message, otherwise)
        wait = retry_after_in(message) if code is FailureCode.RATE_LIMITED else None
        return self.failed(code, message, retry_after_seconds=wait)

    def refused(self, job: Job, reason: str, *, retire: bool = True) -> JobFailed:
        """The native session of the job was not resumed. `retire`: it never can be."""
        self.native_session = None
        return self.failed(
            FailureCode.RESUME_FAILED,
            f"Could not resume the native session {job.native_session!r}: {reason}",
            retired_session=job.native_session if retire else None,
        )

    def succeeded(self, output: str) -> JobResult:
        return JobResult(output, self.native_session, self.usage, self.cli_version)


async def with_one_fresh_start(job: Job, once: Callable[[Job], Awaitable[JobResult]]) -> JobResult:
    """Runs a job, and once more with the transcript if its native session is refused before any tool call.

    Without a transcript the failure stands: a fresh start would silently forget the conversation.
    """
    try:
        return await once(job)
    except JobFailed as failure:
        # Not retired: it may work next time, after another process has let go of it, for instance.
        is_gone = failure.code is FailureCode.RESUME_FAILED and failure.retired_session is not None
        if not is_gone or failure.tool_calls or not job.transcript:
            raise
        reason = failure.message
    disclosure = (
        f"{reason}. This is a new session with the conversation so far as text; tool results are missing."
    )
    fresh = replace(job, native_session=None, catch_up=(), disclosures=(*job.disclosures, disclosure))
    try:
        result = await once(fresh)
    except JobFailed as failure:
        failure.retired_session = job.native_session
        raise
    return replace(result, retired_session=job.native_session, disclosure=disclosure)


def bounded(text: str, limit: int = ACTIVITY_CHARACTERS) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit:,} more characters)"


def bounded_input(value: Any) -> Any:
    """A tool's input as it is; one that is too long, as the beginning of its JSON."""
    text = _json(value)
    return value if len(text) <= ACTIVITY_CHARACTERS else bounded(text)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()
