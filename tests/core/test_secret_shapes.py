"""What looks like a key is replaced, wherever it stands in a message; the rest stays as it is."""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest

from lastgood.core.secret_shapes import MARK, holds_key, redacted, redaction, without_secret_shapes
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


@pytest.mark.parametrize(
    "text",
    [
        "sk-" + "0f9e8d7c6b5a4321" * 2, "sk-ant-api03-Qm9ydGhlLWJ1aWxkZXItMTc",
        "ghp_Ab3dEf6hIj9lMn2pQr5tUv8xYz1bCd4eFg7h", "github_pat_11ABCDEFG0_abcdefghijklmnopqrstuvwxyz",
        "glpat-x9Yz8Wv7Ut6Sr5Qp4On3", "xoxb-123456789012-AbCdEf", "AKIAQWERTYUIOPASDFGH",
        "ASIA4XV2KJ7TQWLM9RBN", "AIzaSyD4x8Kq2mVb7Nc1Rt5Lp9Wz3Ye6Ua0Hj_QX",
        "npm_Zx8Cv7Bn6Mq5We4Rt3Yu2Io1Pa0Sd9Fg8HjK", "lgt_Qm3Nn8-Zx7_Cv6Bn5Mq4We3Rt2Yu1Io0",
    ],
)  # fmt: skip
@pytest.mark.parametrize("around", ["{}", "key = '{}'\n", "\0{}\0", "http://h/?key={}&x"])
def test_a_file_with_a_key_is_recognised(text: str, around: str) -> None:
    data = around.format(text).encode()
    assert holds_key(b"x" * 1000 + b" sk-short ghp_ " + data)


@pytest.mark.parametrize(
    "text",
    [
        "task-" + "a1B2" * 8, "sk-folding-cube-animation-delay", "sk-estimator-doc-link-v2", "sk-" + "x" * 40,
        "sk-your-api-key-goes-here", "ghp_" + "x" * 36, "AKIAIOSFODNN7EXAMPLE", "AKIA" + "X" * 16,
        "lg_breakpoint_for_large_screens_2", "npm_config_registry npm_lifecycle_event", "pypi-" + "-" * 60,
        "postgres://me:secret@db/x", "Authorization: Bearer " + "t" * 20, "github_pat_" + "_" * 40,
    ],
)  # fmt: skip
def test_names_and_placeholders_are_no_keys(text: str) -> None:
    assert not holds_key(text.encode())


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


def test_a_short_text_is_redacted_in_one_slice() -> None:
    assert finished(redaction(f"key {KEY}")) == (f"key {MARK}", 1)


def test_many_key_blocks_without_an_end_are_redacted_in_linear_time() -> None:
    text = "-----BEGIN PRIVATE KEY-----" * 20_000
    began = time.monotonic()
    assert without_secret_shapes(text) == MARK * 20_000
    assert time.monotonic() - began < 60  # minutes where each was searched to its limit
