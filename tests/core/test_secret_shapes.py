"""What looks like a key is replaced, wherever it stands in a message; the rest stays as it is."""

from __future__ import annotations

import pytest

from lastgood.core.secret_shapes import MARK, redacted, without_secret_shapes
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
