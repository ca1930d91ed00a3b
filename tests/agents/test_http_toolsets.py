"""Toolsets that make requests: what a file may not ask for."""

import pytest

from tests.agents.corpus import errors_of


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{name: a, method: GET, endpoint: 'https://${host}/x'}", "an argument cannot be a part of its host"),
        ("{name: a, method: GET, endpoint: /x}", "it must begin with https:// or http:// and a host"),
        ("{name: a b, method: GET, endpoint: 'https://a.example'}", "'a b' is not a name of a tool"),
    ],
)
def test_I39_an_api_call_to_nowhere_or_anywhere_is_an_error(config: str, words: str) -> None:
    text = f"agents: {{root: {{model: auto, toolsets: [{{type: api, api_config: {config}}}]}}}}"
    [(_, message)] = errors_of(text)
    assert words in message
