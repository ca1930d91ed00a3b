"""Decides what the final report of a run says: how it ended, redacted and within the server's limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lastgood.worker.claim_calls import StopReason
from lastgood.worker.job import FailureCode, JobFailed, JobResult
from lastgood.worker.redaction import Redaction
from lastgood.worker.transcript_sender import cut

_OUTPUT_BYTES = 1_000_000
_ERROR_BYTES = 4_000


class TextTail:
    """The newest text of a run, for the report of one that is stopped."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, text: str) -> None:
        self.text = f"{self.text}{text}\n"[-_ERROR_BYTES:]


@dataclass(frozen=True, slots=True)
class RunFacts:
    claim_token: str
    stop_reason: StopReason | None
    work_dir: str | None
    native_session: str | None
    tool_calls: int
    said: str
    delivered: tuple[int, ...]  # messages of a person that the run has taken


def final_report(
    outcome: JobResult | JobFailed, facts: RunFacts, redaction: Redaction
) -> tuple[str, dict[str, Any]]:
    """The call and its body. An absent field means that nothing is known."""
    known = {
        "claim_token": facts.claim_token,
        "work_dir": facts.work_dir,
        "native_session": outcome.native_session or facts.native_session,
        "retired_session": outcome.retired_session,
        "cli_version": outcome.cli_version or None,
    }
    if isinstance(outcome, JobResult):
        call, more = "complete", _success(outcome, facts, redaction)
    else:
        call, more = "fail", _failure(outcome, facts, redaction)
    return call, {name: value for name, value in (known | more).items() if value is not None}


def _success(result: JobResult, facts: RunFacts, redaction: Redaction) -> dict[str, Any]:
    usage = result.usage
    return {
        "output": cut(redaction.text(result.output), _OUTPUT_BYTES),
        "usage": {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost": usage.cost,
        },
        "delivered": list(facts.delivered) or None,
        "disclosure": redaction.text(result.disclosure) or None,
    }


def _failure(failed: JobFailed, facts: RunFacts, redaction: Redaction) -> dict[str, Any]:
    return {
        "code": _code_of(failed, facts.stop_reason),
        "error": cut(redaction.text(_words(failed, facts)), _ERROR_BYTES),
        "resume_failed": failed.code is FailureCode.RESUME_FAILED or None,
        "tool_calls": max(failed.tool_calls, facts.tool_calls),
        "retry_after_seconds": failed.retry_after_seconds,
    }


def _words(failed: JobFailed, facts: RunFacts) -> str:
    """What a run that was taken away had said so far stays readable with the task."""
    if facts.stop_reason in (StopReason.LOST, StopReason.CANCELLED) and facts.said:
        return f"{failed.message}; its output so far: {facts.said}"
    return failed.message


def _code_of(failed: JobFailed, reason: StopReason | None) -> str:
    """A worker that was stopped says nothing about the task, which is tried again."""
    match reason:
        case None | StopReason.TIMEOUT:
            return failed.code.value
        case StopReason.WORKER_STOPPED | StopReason.TOKEN_REJECTED:
            return "worker_stopped"
        case _:
            return "lease_lost"
