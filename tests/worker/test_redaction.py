"""Nothing leaves the machine with a known secret or a key in it."""

from __future__ import annotations

import pytest

from lastgood.worker.cli_environment import cli_environment
from lastgood.worker.redaction import Redaction, secrets_in

SECRET = "s3cr3t-value-42"


@pytest.mark.parametrize(
    "text",
    [
        "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWx",
        "ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-1234567890-abcdefghij",
        "lg_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789-_abcdefg",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
        SECRET,
    ],
)
def test_keys_and_known_secrets_are_redacted(text: str) -> None:
    redacted = Redaction([SECRET]).text(f"before {text} after")
    assert redacted == "before [redacted] after"


def test_bearer_tokens_and_passwords_in_urls_are_redacted() -> None:
    redaction = Redaction(())
    assert redaction.text("Authorization: Bearer abcdefghijklmnop1234") == "Authorization: Bearer [redacted]"
    assert redaction.text("https://me:hunter2@host/x") == "https://me:[redacted]@host/x"


def test_ordinary_text_stays() -> None:
    text = "task sk-1 done; see https://host:8080/a@b and the bearer of news"
    assert Redaction(["short"]).text(text) == text


def test_json_is_redacted_at_every_depth() -> None:
    plain = {"cmd": ["curl", {"header": f"X: {SECRET}"}], SECRET: 1, "n": None}
    assert SECRET not in repr(Redaction([SECRET]).plain(plain))


def test_a_secret_inside_another_one_leaves_nothing_behind() -> None:
    assert Redaction(["abcdefgh", "abcdefgh-and-more"]).text("x abcdefgh-and-more y") == "x [redacted] y"


def test_secrets_are_found_by_name_and_in_proxies() -> None:
    environment = {
        "OPENAI_API_KEY": "key-value-1",
        "MINE": "mine-value-2",
        "PATH": "/usr/bin:/usr/local/bin",
        "HTTPS_PROXY": "http://me:p%40ssword9@proxy:3128",
        "KEYBOARD_LAYOUT": "qwertz-german",
    }
    found = secrets_in(environment, ["MINE"])
    assert found == {"key-value-1", "mine-value-2", "p%40ssword9", "p@ssword9"}


def test_a_cli_sees_the_minimum_and_what_is_passed_by_name() -> None:
    ours = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LC_ALL": "C",
        "https_proxy": "http://proxy",
        "ANTHROPIC_API_KEY": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "LASTGOOD_TOKEN": "c",
        "LASTGOOD_WORKER_TOKEN_FILE": "d",
    }
    seen = cli_environment(ours, ["ANTHROPIC_API_KEY", "LASTGOOD_TOKEN"])
    assert seen == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "LC_ALL": "C",
        "https_proxy": "http://proxy",
        "ANTHROPIC_API_KEY": "a",
        "TERM": "dumb",
    }
