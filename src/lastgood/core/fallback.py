"""Decides what follows a failed model call: the same model again, the next one, or failure.

Two rules come first. Streamed output cannot be taken back, so nothing is retried after the first chunk. And a
conversation that is too long for one model is shortened by the caller, not sent to another model. Knows no
clock and no randomness: cooldowns and jitter are passed in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lastgood.errors import ContextOverflow, ModelError, ModelUnknown, ProviderRateLimited

#: The first wait; each further one is twice as long, up to the longest.
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 8.0
#: A provider's Retry-After may exceed our own delays. No turn waits longer than this.
LONGEST_PATIENCE_SECONDS = 30.0
#: However long a provider's Retry-After is, it is called again after this.
LONGEST_COOLDOWN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ModelFailure:
    """One failed model call."""

    error: ModelError | ModelUnknown
    spoken: bool  # some of the answer was passed on before it failed
    tries: int  # of this model, this one included
    others: int  # models of the chain that were not called yet


@dataclass(frozen=True, slots=True)
class Retry:
    after_seconds: float


@dataclass(frozen=True, slots=True)
class Next:
    """`cooldown_seconds`: how long all turns skip the model; 0: not at all."""

    cooldown_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class NoMoreModels:
    reason: str


Decision = Retry | Next | NoMoreModels


def after_failure(failed: ModelFailure, *, retries: int, cooldown_seconds: float, jitter: float) -> Decision:
    """`jitter` is a number from 0 to 1; it shortens a wait by up to a half."""
    error = failed.error
    if failed.spoken:
        return NoMoreModels("part of the response was already streamed")
    if isinstance(error, ContextOverflow):
        return NoMoreModels("the conversation exceeds the context window")
    if isinstance(error, ModelUnknown):
        return Next() if failed.others else NoMoreModels("no fallback model is left")
    if isinstance(error, ProviderRateLimited) and failed.others:
        asked = max(cooldown_seconds, error.retry_after or 0.0)
        return Next(min(asked, LONGEST_COOLDOWN_SECONDS))
    if error.passes and failed.tries <= retries:
        wait = _wait(failed.tries, error.retry_after, jitter)
        if wait is not None:
            return Retry(wait)
    return Next() if failed.others else NoMoreModels("no fallback model is left")


def _wait(tries: int, retry_after: float | None, jitter: float) -> float | None:
    """Returns None if the provider's Retry-After exceeds what a turn may wait."""
    # The exponent is bounded first: a chain may be configured with any number of retries.
    own = min(FIRST_WAIT_SECONDS * 2.0 ** min(tries - 1, 16), LONGEST_WAIT_SECONDS) * (1 - jitter / 2)
    if retry_after is None:
        return own
    return max(own, retry_after) if retry_after <= LONGEST_PATIENCE_SECONDS else None


def order(cooling: Sequence[bool]) -> tuple[int, ...]:
    """Returns the models in the order of calls. One in cooldown comes last instead of being skipped: a turn
    that could be answered must not fail."""
    numbers = range(len(cooling))
    return (*(n for n in numbers if not cooling[n]), *(n for n in numbers if cooling[n]))
