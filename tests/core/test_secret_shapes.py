"""What looks like a key is replaced, wherever it stands in a message; the rest stays as it is."""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest

from lastgood.core.secret_shapes import MARK, redacted, redaction, without_secret_shapes
from lastgood.model.messages import Image, Message, Role, ToolCall, assistant

KEY = "sk-" + "a1B2" * 8


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"use {KEY} here", f"use {MARK} here"),
        ("ghp_" + "x" * 36, MARK),
        ("AKIA" + "A1" * 8, MARK),
        ("Authorization: Bearer " + "t" * 20, f"Authorization: Bearer {MARK}"),
        ("postgres://me:secret@db/x", f"postgres://me:{MARK}@db/x"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc", MARK),
        ("nothing to hide: sk-short, 10:30@noon", "nothing to hide: sk-short, 10:30@noon"),
    ],
)
def test_shapes_of_keys_are_replaced(text: str, shown: str) -> None:
    assert without_secret_shapes(text) == shown


def test_every_text_of_a_message_is_looked_at() -> None:
    image = Image("https://example.com/a.png")
    said = Message(Role.USER, f"key {KEY}", parts=(f"key {KEY}", image))
    assert redacted(said) == Message(Role.USER, f"key {MARK}", parts=(f"key {MARK}", image))
    called = redacted(assistant("", ToolCall("call_1", "shell", f'{{"cmd": "echo {KEY}"}}')))
    assert called.tool_calls[0].arguments == f'{{"cmd": "echo {MARK}"}}'


def finished(work: Generator[None, None, str]) -> tuple[str, int]:
    """What it returns, and the number of its slices."""
    slices = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, slices
        slices += 1


def test_a_long_text_is_redacted_in_slices_as_it_is_at_once() -> None:
    block = "-----BEGIN PRIVATE KEY-----\n" + "b" * 7900 + "\n-----END PRIVATE KEY-----"
    pieces = [f"{KEY} ", block, " ://me:secret@db ", "Bearer " + "t" * 4000 + " ", "word " * 1733]
    text = "".join(pieces[number % 5] + "x" * (number * 613 % 9000) + " " for number in range(200))
    shown, slices = finished(redaction(text))
    assert shown == without_secret_shapes(text)
    assert KEY not in shown
    assert slices > 30


def test_many_key_blocks_without_an_end_are_redacted_in_linear_time() -> None:
    text = "-----BEGIN PRIVATE KEY-----" * 20_000
    began = time.monotonic()
    assert without_secret_shapes(text) == MARK * 20_000
    assert time.monotonic() - began < 60  # minutes where each was searched to its limit
