"""Removes secrets from what leaves the machine: known values, and text in the shape of common keys.

It sees one piece of text at a time. A secret that a CLI prints in two pieces passes in the live transcript;
the final output is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from lastgood.core.secret_shapes import MARK, holds_key, without_secret_shapes

#: Shorter values occur in ordinary text.
_SHORTEST = 8
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PWD|CREDENTIALS?)(?:_|$)", re.I
)
_PROXY_NAME = re.compile(r"^(?:https?|all)_proxy$", re.I)
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")


class Redaction:
    def __init__(self, values: Iterable[str]) -> None:
        """`values` are secrets as they are. The longest goes first: one may contain another."""
        self.values = tuple(
            sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True)
        )
        self._known = re.compile("|".join(map(re.escape, self.values))) if self.values else None

    def knowing(self, value: str | None) -> Redaction:
        """With one more secret."""
        return self if value is None else Redaction((*self.values, value))

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MARK, text)
        return without_secret_shapes(text)

    def plain(self, value: Any) -> Any:
        """A JSON value, with every text in it redacted, names of fields included."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.text(str(name)): self.plain(item) for name, item in value.items()}
            case list() | tuple():
                return [self.plain(item) for item in value]
            case _:
                return value

    def is_in(self, data: bytes) -> bool:
        """Whether a file holds a known secret, a private key or an API key. Belongs into a thread."""
        return (
            any(value.encode() in data for value in self.values)
            or (b"PRIVATE KEY-----" in data and PRIVATE_KEY.search(data.decode("latin-1")) is not None)
            or holds_key(data)
        )


def secrets_in(environment: Mapping[str, str], passed: Iterable[str]) -> set[str]:
    """Values of variables that are passed by name or named like secrets, and the passwords of proxies."""
    found = {environment[name] for name in passed if name in environment}
    found |= {value for name, value in environment.items() if _SECRET_NAME.search(name)}
    for name, value in environment.items():
        if _PROXY_NAME.match(name) and (password := urlsplit(value).password):
            found |= {password, unquote(password)}
    return found
