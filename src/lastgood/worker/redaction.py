"""Removes secrets from what leaves the machine: known values, and text in the shape of common keys.

It sees one piece of text at a time. A secret that a CLI prints in two pieces passes in the live transcript;
the final output is whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

#: Shorter values occur in ordinary text.
_SHORTEST = 8
_MARK = "[redacted]"
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PWD|CREDENTIALS?)(?:_|$)", re.I
)
_PROXY_NAME = re.compile(r"^(?:https?|all)_proxy$", re.I)
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")

#: Each is bounded and has no nested repetition: the text is a stranger's.
_SHAPES = re.compile(
    "|".join(
        (
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[\s\S]{0,8000}?(?:-----END [A-Z ]{0,30}KEY-----|\Z)",
            r"\bsk-[A-Za-z0-9_-]{20,200}",  # OpenAI, Anthropic and others
            r"\bgh[opsur]_[A-Za-z0-9]{30,255}\b",
            r"\bgithub_pat_[A-Za-z0-9_]{30,255}\b",
            r"\bglpat-[A-Za-z0-9_-]{20,100}",
            r"\bxox[abeoprs]-[A-Za-z0-9-]{10,200}",
            r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
            r"\bAIza[A-Za-z0-9_-]{35}",
            r"\bnpm_[A-Za-z0-9]{36}\b",
            r"\bpypi-[A-Za-z0-9_-]{50,300}",
            r"\blg_[A-Za-z0-9_-]{20,200}",
            r"\beyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{10,1000}",  # JWT
        )
    )
)
_BEARER = re.compile(r"(?i)(\bbearer[ \t]{1,4})[A-Za-z0-9._~+/=-]{16,4000}")
_IN_URL = re.compile(r"(://[^\s/:@]{1,200}:)[^\s/@]{1,200}(@)")


class Redaction:
    def __init__(self, values: Iterable[str]) -> None:
        """`values` are secrets as they are. The longest goes first: one may contain another."""
        self.values = tuple(
            sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True)
        )
        self._known = re.compile("|".join(map(re.escape, self.values))) if self.values else None

    def text(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(_MARK, text)
        text = _SHAPES.sub(_MARK, text)
        text = _BEARER.sub(rf"\1{_MARK}", text)
        return _IN_URL.sub(rf"\1{_MARK}\2", text)

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
        """Whether a file holds a known secret or a private key."""
        return any(value.encode() in data for value in self.values) or (
            b"PRIVATE KEY-----" in data and PRIVATE_KEY.search(data.decode("latin-1")) is not None
        )


def secrets_in(environment: Mapping[str, str], passed: Iterable[str]) -> set[str]:
    """Values of variables that are passed by name or named like secrets, and the passwords of proxies."""
    found = {environment[name] for name in passed if name in environment}
    found |= {value for name, value in environment.items() if _SECRET_NAME.search(name)}
    for name, value in environment.items():
        if _PROXY_NAME.match(name) and (password := urlsplit(value).password):
            found |= {password, unquote(password)}
    return found
