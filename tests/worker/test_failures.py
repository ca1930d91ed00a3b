"""Which failure a text of a CLI means."""

import pytest

from lastgood.worker.job import FailureCode
from lastgood.worker.runtimes.failures import code_of, retry_after_in

RATE, MODEL, CLI = FailureCode.RATE_LIMITED, FailureCode.MODEL_ERROR, FailureCode.CLI_FAILED


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("API Error: Request rejected (429) · planted 429", RATE),
        ("Rate limit exceeded: planted 429.", RATE),
        ("You've hit your usage limit. Try again in 3 hours.", RATE),
        ("exceeded retry limit, last status: 429 Too Many Requests", RATE),
        ("Overloaded", RATE),
        ("Failed to authenticate. API Error: 401 planted 401", MODEL),
        ("Server error (500 Internal Server Error) at http://x: planted 500", MODEL),
        ("unexpected status 401 Unauthorized: planted, url: http://x", MODEL),
        ("Network error: Could not connect to 127.0.0.1:9", MODEL),
        ("error sending request for url", MODEL),
        ("connect ECONNREFUSED 127.0.0.1:9", MODEL),
        ("Cannot find module 'x'", CLI),
        ("panicked at src/main.rs:500:12", CLI),
        ("exit code 1", CLI),
    ],
)
def test_texts_of_failures(text: str, code: FailureCode) -> None:
    assert code_of(text) is code


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("retry after 30", 30),
        ("Retry-After: 12", 12),
        ("retry_after=1.5s", 1.5),
        ("Please try again in 200ms", 0.2),
        ("try again in 20 seconds", 20),
        ("try again in 2 minutes", 120),
        ("Try again in 3 hours.", 10_800),
        ("try again in 5m", 300),
        ("try again later", None),
    ],
)
def test_waits_that_texts_name(text: str, seconds: float | None) -> None:
    assert retry_after_in(text) == (None if seconds is None else pytest.approx(seconds))
