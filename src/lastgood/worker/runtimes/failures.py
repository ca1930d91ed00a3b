"""Reads from an error of a CLI why it failed: a rate limit, the model's provider, or the CLI itself.

The text decides only between codes of a failure. Whether a turn succeeded is never read from a text here.
"""

from __future__ import annotations

import re

from lastgood.worker.job import FailureCode

_RATE_LIMIT = re.compile(
    r"\b429\b|rate.?limit|too many requests|usage limit|limit reached|quota|\b529\b|overloaded", re.IGNORECASE
)
_MODEL = re.compile(
    r"\b(?:status|code|error|http)\W{0,3}(?:code\W{0,3})?[45]\d\d\b|\b[45]\d\d\b (?:[A-Z][a-z]+ ?)+|api error"
    r"|connection (?:refused|reset|error)|connect\w* failed|unable to connect|econn\w+|network"
    r"|error sending request|unauthori[sz]ed|invalid api key|authentication|server error|server returned",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"(?:retry.{0,3}after|(?:try|retry)(?: again)? (?:in|after))\W{0,4}"
    r"(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?)?(?![a-z])",
    re.IGNORECASE,
)
_UNITS = (("mil", 0.001), ("ms", 0.001), ("m", 60.0), ("h", 3600.0), ("", 1.0))


def code_of(text: str, otherwise: FailureCode = FailureCode.CLI_FAILED) -> FailureCode:
    if _RATE_LIMIT.search(text):
        return FailureCode.RATE_LIMITED
    return FailureCode.MODEL_ERROR if _MODEL.search(text) else otherwise


def code_of_status(status: int) -> FailureCode:
    return FailureCode.RATE_LIMITED if status in (429, 529) else FailureCode.MODEL_ERROR


def retry_after_in(text: str) -> float | None:
    """Returns the seconds that a text of a rate limit names; a bare number is in seconds."""
    found = _AFTER.search(text)
    if found is None:
        return None
    unit = (found[2] or "").lower()
    return float(found[1]) * next(factor for start, factor in _UNITS if unit.startswith(start))
