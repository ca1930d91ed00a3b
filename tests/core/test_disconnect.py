"""Who may leave: the table of the contract, row by row."""

from itertools import product

import pytest

from lastgood.core.disconnect import ON_DISCONNECT, RequestOrigin, on_disconnect
from lastgood.model.attempts import OnLeave

API, OPENAI = RequestOrigin.SESSION_API, RequestOrigin.OPENAI_API
TERMINAL, QUEUE = RequestOrigin.TERMINAL, RequestOrigin.QUEUE


@pytest.mark.parametrize(
    ("origin", "conversation", "key", "expected"),
    [
        (API, None, None, OnLeave.CONTINUE),
        (API, None, "key", OnLeave.CONTINUE),
        (OPENAI, "chat", None, OnLeave.ORPHAN),
        (OPENAI, "chat", "key", OnLeave.CONTINUE),
        (OPENAI, None, None, OnLeave.CANCEL),
        (TERMINAL, None, None, OnLeave.CANCEL),
        (TERMINAL, None, "key", OnLeave.CONTINUE),
        (QUEUE, None, None, OnLeave.CONTINUE),
        (QUEUE, None, "key", OnLeave.CONTINUE),
    ],
)
def test_what_a_disconnect_means(
    origin: RequestOrigin, conversation: str | None, key: str | None, expected: OnLeave
) -> None:
    assert on_disconnect(origin, key, conversation=conversation) is expected


def test_requests_with_a_key_continue_without_their_client() -> None:
    assert {then for (_, _, has_key), then in ON_DISCONNECT.items() if has_key} == {OnLeave.CONTINUE}


def test_only_requests_that_are_refused_have_no_row() -> None:
    every = set(product(RequestOrigin, (False, True), (False, True)))
    without_conversations = {row for row in every if row[0] is not OPENAI and row[1]}
    assert every - set(ON_DISCONNECT) == without_conversations | {(OPENAI, False, True)}
