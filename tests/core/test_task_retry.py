"""What becomes of a task whose run failed: by class, never by text (I29)."""

from __future__ import annotations

import pytest

from lastgood.core.task_retry import (
    FAILURES,
    MOST_LOST_CLAIMS,
    MOST_RETRY_SECONDS,
    FailTask,
    RetryTask,
    TaskRetry,
    after_failure,
    after_lost_claims,
    after_unavailable,
    error_of_run,
    outcome_of,
)
from lastgood.errors import (
    ContextOverflow,
    LastgoodError,
    ModelError,
    ProviderRateLimited,
    TurnFailed,
    Unenforceable,
)
from lastgood.model.tasks import PointerOutcome
from lastgood.surfaces.http.error_responses import status_of


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("model_error", ModelError),
        ("rate_limited", ProviderRateLimited),
        ("context_overflow", ContextOverflow),
        ("unenforceable", Unenforceable),
        ("cli_failed", TurnFailed),
        ("something_new", TurnFailed),
    ],
)
def test_a_failed_run_has_the_code_of_its_worker(code: str, kind: type[Exception]) -> None:
    error = error_of_run(code, "boom")
    assert type(error) is kind
    assert (error.code, error.message) == (code, "boom")


def codes(kind: type[LastgoodError]) -> set[str]:
    return {kind.code, *(code for child in kind.__subclasses__() for code in codes(child))}


@pytest.mark.parametrize("code", sorted(codes(LastgoodError)))
def test_no_code_of_a_worker_speaks_about_the_callers_request(code: str) -> None:
    """A caller must not take a run that failed for a wrong token, a busy session or a full disk."""
    error = error_of_run(code, "boom")
    assert isinstance(error, TurnFailed | Unenforceable)
    assert status_of(error) not in (401, 403, 404, 409, 412, 413, 503)
    assert "boom" in error.message


def decide(code: str, failures: int = 0, tool_calls: int = 0, **more: object) -> TaskRetry:
    return after_failure(code, failures=failures, tool_calls=tool_calls, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "failures", "tool_calls", "retry_after", "seconds", "counts"),
    [
        ("rate_limited", 0, 0, None, 60.0, False),
        ("rate_limited", 0, 0, 1800.0, 1800.0, False),
        ("rate_limited", 0, 0, 0.0, 5.0, False),
        ("rate_limited", 0, 0, 1e9, 86400.0, False),
        ("rate_limited", 9, 9, 30.0, 30.0, False),
        ("model_error", 0, 0, None, 5.0, True),
        ("model_error", 1, 0, None, 10.0, True),
        ("model_error", 0, 0, 42.0, 42.0, True),
        ("model_error", 0, 0, 1e9, 300.0, True),
        ("cli_failed", 1, 0, None, 10.0, True),
        ("not_started", 0, 0, None, 5.0, True),
        ("not_started", 0, 4, None, 5.0, True),
        ("worker_stopped", 0, 0, None, 5.0, False),
        ("worker_stopped", 5, 3, None, 5.0, False),
        ("resume_failed", 1, 0, None, 10.0, True),
    ],
)
def test_a_failure_that_passes_is_tried_again(
    code: str, failures: int, tool_calls: int, retry_after: float | None, seconds: float, counts: bool
) -> None:
    decided = decide(code, failures, tool_calls, retry_after=retry_after)
    assert isinstance(decided, RetryTask)
    assert (decided.seconds, decided.counts) == (seconds, counts)
    assert decided.reason


@pytest.mark.parametrize(
    ("code", "failures", "tool_calls", "reason"),
    [
        ("cli_protocol", 0, 0, "is not retried"),
        ("timeout", 0, 0, "is not retried"),
        ("unenforceable", 0, 0, "is not retried"),
        ("something_new", 0, 0, "is not retried"),
        ("model_error", 2, 0, "failed 3 times"),
        ("not_started", 2, 0, "failed 3 times"),
        ("model_error", 0, 1, "a tool has run"),
        ("resume_failed", 0, 1, "a tool has run"),
    ],
)
def test_any_other_failure_is_final(code: str, failures: int, tool_calls: int, reason: str) -> None:
    decided = decide(code, failures, tool_calls)
    assert isinstance(decided, FailTask)
    assert reason in decided.reason


def test_a_failed_resume_counts_as_one_whatever_its_code() -> None:
    assert isinstance(decide("cli_protocol", resume_failed=True), RetryTask)
    assert outcome_of("cli_protocol", resume_failed=True) is PointerOutcome.RESUME_FAILED


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("rate_limited", PointerOutcome.UNCOUNTED),
        ("not_started", PointerOutcome.UNCOUNTED),
        ("worker_stopped", PointerOutcome.UNCOUNTED),
        ("resume_failed", PointerOutcome.RESUME_FAILED),
        ("model_error", PointerOutcome.FAILED),
        ("something_new", PointerOutcome.FAILED),
    ],
)
def test_I29_what_a_failure_says_about_the_native_session(code: str, expected: PointerOutcome) -> None:
    assert outcome_of(code) is expected


def test_every_code_has_a_class() -> None:
    assert len(FAILURES) == 9


@pytest.mark.parametrize(
    ("lost", "ends"), [(0, False), (1, False), (MOST_LOST_CLAIMS - 1, False), (MOST_LOST_CLAIMS, True)]
)
def test_a_task_that_loses_its_claims_is_not_claimed_for_ever(lost: int, ends: bool) -> None:
    decided = after_lost_claims(lost)
    assert (decided is not None) == ends
    assert decided is None or f"lost {lost} times" in decided.reason


@pytest.mark.parametrize(
    ("code", "retry_after", "tried", "ends"),
    [
        ("rate_limited", 3600.0, 0.0, False),
        ("rate_limited", 3600.0, MOST_RETRY_SECONDS - 3600.0, False),
        ("rate_limited", 3600.0, MOST_RETRY_SECONDS - 3599.0, True),
        ("worker_stopped", None, MOST_RETRY_SECONDS - 5.0, False),
        ("worker_stopped", None, MOST_RETRY_SECONDS, True),
        ("model_error", None, 2 * MOST_RETRY_SECONDS, False),  # it is counted
    ],
)
def test_what_does_not_count_is_retried_for_days_and_not_for_ever(
    code: str, retry_after: float | None, tried: float, ends: bool
) -> None:
    decided = decide(code, retry_after=retry_after, tried_seconds=tried)
    assert isinstance(decided, FailTask) == ends
    assert not ends or "was retried for 7.0 days" in decided.reason


def test_an_agent_that_cannot_be_loaded_is_waited_for_as_long() -> None:
    assert after_unavailable(60.0) == RetryTask(30.0, "its agent cannot be loaded", counts=False)
    assert isinstance(after_unavailable(MOST_RETRY_SECONDS), FailTask)
