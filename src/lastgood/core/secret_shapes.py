"""Replaces text in the shape of common API keys, tokens and passwords, and finds keys in files.

It sees one piece of text at a time, and knows no values: a secret of another shape passes. A long text is
searched in slices, because it would hold the event loop for seconds.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import replace

from lastgood.model.messages import Message

MARK = "[redacted]"

#: Each is bounded and has no nested repetition: the text is untrusted. A key block without an end goes on to
#: the next one at most, or many beginnings would each be searched to the limit.
_SHAPES = re.compile(
    "|".join(
        (
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[\s\S]{0,8000}?"
            r"(?:-----END [A-Z ]{0,30}KEY-----|(?=-----BEGIN )|\Z)",
            r"\bsk-[A-Za-z0-9_-]{20,200}",  # OpenAI, Anthropic and others
            r"\bgh[opsur]_[A-Za-z0-9]{30,255}\b",
            r"\bgithub_pat_[A-Za-z0-9_]{30,255}\b",
            r"\bglpat-[A-Za-z0-9_-]{20,100}",
            r"\bxox[abeoprs]-[A-Za-z0-9-]{10,200}",
            r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
            r"\bAIza[A-Za-z0-9_-]{35}",
            r"\bnpm_[A-Za-z0-9]{36}\b",
            r"\bpypi-[A-Za-z0-9_-]{50,300}",
            r"\blg[cet]?_[A-Za-z0-9_-]{20,200}",
            r"\beyJ[A-Za-z0-9_-]{10,2000}+\.eyJ[A-Za-z0-9_-]{10,4000}+\.[A-Za-z0-9_-]{10,1000}",  # JWT
        )
    )
)
_BEARER = re.compile(r"(?i)(\bbearer[ \t]{1,4})[A-Za-z0-9._~+/=-]{16,4000}")
_IN_URL = re.compile(r"(://[^\s/:@]{1,200}:)[^\s/@]{1,200}(@)")
_REPLACEMENTS = ((_SHAPES, MARK), (_BEARER, rf"\1{MARK}"), (_IN_URL, rf"\1{MARK}\2"))
_SLICE = 32_768
#: No match is longer.
_LONGEST = 8192


def without_secret_shapes(text: str) -> str:
    for shapes, replacement in _REPLACEMENTS:
        text = shapes.sub(replacement, text)
    return text


def redaction(text: str) -> Generator[None, None, str]:
    """The same in slices, for `paced`."""
    if len(text) <= _SLICE:
        return without_secret_shapes(text)
    for shapes, replacement in _REPLACEMENTS:
        text = yield from _redaction(text, shapes, replacement)
    return text


def _redaction(text: str, shapes: re.Pattern[str], replacement: str) -> Generator[None, None, str]:
    kept: list[str] = []
    at, slice_end = 0, _SLICE
    while at < len(text):
        # A match that begins in this slice may end in the next one; one that begins there waits for it.
        found = shapes.search(text, at, slice_end + _LONGEST)
        if found is not None and found.start() < slice_end:
            kept += (text[at : found.start()], found.expand(replacement))
            at = found.end()
            if at < slice_end:
                continue
        else:
            kept.append(text[at:slice_end])
            at = min(slice_end, len(text))
        slice_end = at + _SLICE
        yield
    return "".join(kept)


#: How keys of one provider begin, and the whole key. A file is left out of a snapshot because of them, so
#: they are fewer: passwords in URLs and JSON Web Tokens are in many harmless files.
_KEYS = tuple(
    (start.encode(), re.compile(rf"\b{start}({rest})".encode()))
    for starts, rest in (
        ("sk-", r"[A-Za-z0-9_-]{20,200}"),
        ("ghp_ gho_ ghs_ ghu_ ghr_", r"[A-Za-z0-9]{30,255}\b"),
        ("github_pat_", r"[A-Za-z0-9_]{30,255}\b"),
        ("glpat-", r"[A-Za-z0-9_-]{20,100}"),
        ("xoxb- xoxp- xoxa- xoxe- xoxo- xoxr- xoxs-", r"[A-Za-z0-9-]{10,200}"),
        ("AKIA ASIA", r"[A-Z0-9]{16}\b"),
        ("AIza", r"[A-Za-z0-9_-]{35}"),
        ("npm_", r"[A-Za-z0-9]{36}\b"),
        ("pypi-", r"[A-Za-z0-9_-]{50,300}"),
        ("lg_ lgc_ lge_ lgt_", r"[A-Za-z0-9_-]{20,200}"),
    )
    for start in starts.split()
)
_LEAST_CHARACTERS = 8
_LEAST_DIGITS = 3


def holds_key(data: bytes) -> bool:
    """Whether a file holds an API key. A pattern is tried only where a key may begin: files are large."""
    for start, key in _KEYS:
        at = data.find(start)
        while at >= 0:
            found = key.match(data, at)
            if found is not None and _is_random(found[1]):
                return True
            at = data.find(start, at + len(start))
    return False


def _is_random(text: bytes) -> bool:
    """Not a name in a program, nor a placeholder in documentation."""
    if len(set(text)) < _LEAST_CHARACTERS or b"example" in text.lower():
        return False
    digits = sum(byte in b"0123456789" for byte in text)
    has_capitals = text != text.lower()
    return digits >= _LEAST_DIGITS or (has_capitals and (digits > 0 or text.isupper()))


def redacted(message: Message) -> Message:
    return replace(
        message,
        content=without_secret_shapes(message.content),
        parts=tuple(without_secret_shapes(one) if isinstance(one, str) else one for one in message.parts),
        tool_calls=tuple(
            replace(call, arguments=without_secret_shapes(call.arguments)) for call in message.tool_calls
        ),
    )
