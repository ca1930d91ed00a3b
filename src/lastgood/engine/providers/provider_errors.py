"""Translates error responses of providers into our errors.

Shows only the error message of the response, in one line, without keys. HTML pages, echoed requests and
headers never get into an error.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from lastgood.engine.providers.provider_aliases import key_names
from lastgood.errors import (
    ContextOverflow,
    KeyRefused,
    ModelError,
    ModelOverloaded,
    ProviderRateLimited,
    QuotaUsedUp,
)
from lastgood.model.agents import ModelSpec
from lastgood.outside.secrets import Secrets

_MOST_WORDS = 300

_QUOTA = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "insufficient_balance")
# How servers say that a conversation is too long. None of them promises these words.
_OVERFLOW = (
    "context_length_exceeded",
    "context length",
    "context window",
    "context size",
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "input token count",
    "too many tokens",
    "maximum number of tokens",
    "reduce the length",
    "model token limit",
    "request too large",
    "request_too_large",
)
# In a stream that has begun there is no status; these words of a `type` or `code` stand for one.
_STATUS_OF_TYPE = (
    ("rate_limit", 429),
    ("too_many_requests", 429),
    ("resource_exhausted", 429),
    ("authentication", 401),
    ("invalid_api_key", 401),
    ("permission", 403),
    ("not_found", 404),
    ("invalid_request", 400),
    ("context_length", 400),
)


@dataclass(frozen=True, slots=True)
class ErrorText:
    """What a provider said of an error, as far as it could be found."""

    message: str = ""
    kind: str = ""  # its code and type, in lower case
    status: int | None = None  # where the code is a number


def what_to_check(model: ModelSpec) -> str:
    """For a model whose server cannot be reached."""
    if model.base_url:
        return "check its base_url and the network"
    if model.provider == "ollama":
        return "start Ollama (`ollama serve`), or set OLLAMA_HOST to its address"
    return "check the network"


def words_of(body: bytes) -> ErrorText:
    try:
        return words_in(orjson.loads(body))
    except orjson.JSONDecodeError:
        return ErrorText()


def words_in(said: Any) -> ErrorText:
    """`{"error": {"message"}}` and what else servers make of it: a text, a list, `detail`, `message`."""
    if isinstance(said, list):
        said = said[0] if said else None
    if isinstance(said, str):
        return ErrorText(said)
    if not isinstance(said, dict):
        return ErrorText()
    said = {str(key).lower(): value for key, value in said.items()}  # botocore's: `{"Error": {"Message"}}`
    for key in ("error", "errors", "detail"):
        if said.get(key):
            return words_in(said[key])
    code = said.get("code")
    status = code if isinstance(code, int) else None
    if isinstance(code, str) and code.isdecimal() and len(code) == 3:
        status = int(code)
    kind = " ".join(str(said[key]) for key in ("code", "type", "status") if said.get(key)).lower()
    message = said.get("message") or said.get("msg") or ""
    return ErrorText(str(message), kind, status)


def refusal(
    model: ModelSpec,
    status: int,
    words: ErrorText,
    secrets: Secrets,
    headers: Mapping[str, str] | None = None,
) -> ModelError:
    """Said instead of an answer."""
    said = _one_line(words.message, secrets)
    error = _of_status(model, status, words, f": {said}" if said else "", secrets)
    error.retry_after = retry_after(headers or {})
    return error


def refusal_in_stream(model: ModelSpec, said: Any, secrets: Secrets) -> ModelError:
    """An error event in a stream that has begun. An unknown type counts as transient."""
    words = words_in(said)
    status = words.status if words.status is not None and 400 <= words.status < 600 else None
    if status is None:
        status = next((number for word, number in _STATUS_OF_TYPE if word in words.kind), 500)
    return refusal(model, status, words, secrets)


def _key_refused(model: ModelSpec, said: str, secrets: Secrets) -> KeyRefused:
    names = key_names(model)
    either = " or ".join(names)
    if model.keyless:
        how = "an agent file from a URL may not send one; use a copy of the file on disk"
        return KeyRefused(f"{model.ref} requires an API key{said}; {how}")
    if not names:
        return KeyRefused(f"{model.ref} requires an API key{said}; name its variable with `token_key`")
    if not any(map(secrets.has, names)):  # a base_url of one's own may work without
        return KeyRefused(f"{model.ref} requires an API key{said}; set {either}")
    return KeyRefused(f"{model.ref} rejected the API key in {either}{said}; set a valid key")


def _of_status(model: ModelSpec, status: int, words: ErrorText, said: str, secrets: Secrets) -> ModelError:
    ref = model.ref
    if status in (401, 403):
        return _key_refused(model, said, secrets)
    if status == 402 or any(word in words.kind for word in _QUOTA):
        return QuotaUsedUp(f"the account for {ref} has no credit left{said}; nothing was committed")
    if status == 429:
        return ProviderRateLimited(f"{ref} is rate limited{said}; send the turn again later")
    if status == 413 or (status in (400, 422) and _overflows(words)):
        advice = "reset the session, fork an earlier turn, or send a shorter message"
        return ContextOverflow(f"the conversation is too long for {ref}{said}; {advice}")
    if status in (408, 409) or status >= 500:
        return ModelOverloaded(f"{ref} failed with status {status}{said}; send the turn again")
    if status == 404:
        return ModelError(
            f"no such model or address: {ref} returned 404{said}; check the model's name and its base_url"
        )
    if 300 <= status < 400:
        return ModelError(
            f"{ref} returned a redirect, which is not followed; correct its base_url (status {status})"
        )
    return ModelError(f"{ref} rejected the request with status {status}{said}")


def _overflows(words: ErrorText) -> bool:
    text = f"{words.kind} {words.message.lower()}"
    return any(word in text for word in _OVERFLOW)


def _one_line(text: str, secrets: Secrets) -> str:
    if text.lstrip().startswith("<"):  # a page, in the place of words
        return ""
    # Keys are taken out before the text is cut, or half a key would stay.
    line = " ".join(secrets.scrub(text).split())
    line = "".join(char for char in line if char.isprintable())
    return (line if len(line) <= _MOST_WORDS else line[:_MOST_WORDS] + "…").rstrip(".")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How long to wait, in seconds, if the provider said so."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        at = parsedate_to_datetime(headers.get("retry-after", ""))
        return max(0.0, at.timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
