"""Which model a request is for, as a table."""

from __future__ import annotations

import pytest

from lastgood.core.model_router import route
from lastgood.model.agents import ModelRoute

ROUTES = (
    ModelRoute("fast", ("hello", "hi there", "good morning", "thanks", "how are you")),
    ModelRoute("careful", ("prove that there is no largest prime", "find the mistake in this proof")),
    ModelRoute("code", ("write a program in Python", "debug this function", "why does my code fail?")),
)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("Hello!", "fast"),
        ("Thanks a lot", "fast"),
        ("Please find a mistake in these proofs", "careful"),
        ("Write me a Python program that sorts", "code"),
        ("debug the function below", "code"),
        ("Is 7 a prime?", "careful"),
        ("What is the capital of France?", None),
        ("", None),
        ("the of and", None),
    ],
)
def test_route(request_: str, expected: str | None) -> None:
    assert route(request_, ROUTES) == expected


def test_of_two_alike_the_first_counts_and_a_long_request_is_cut() -> None:
    twice = (ModelRoute("one", ("sort a list",)), ModelRoute("two", ("sort a list",)))
    assert route("sort this list", twice) == "one"
    assert route("x " * 4000 + "sort a list", twice) is None
    assert route("sort", ()) is None
