"""Decides what follows when a model did not answer: the same model again, the next one, or the end.

Two rules come before all others. What has been passed on cannot be taken back,
so after the first word nothing is tried again. And a conversation that is too
long for one model is the caller's to shorten, not another model's to guess at.
Knows no clock and no chance: how long a model has been left alone, and the
jitter of a wait, are passed in.
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
#: However long a provider asks to be left alone, it is asked again after this.
LONGEST_COOLDOWN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ModelFailure:
    """One call that gave no answer."""

    error: ModelError | ModelUnknown
    spoken: bool  # some of the answer was passed on before it failed
    tries: int  # of this model, this one included
    others: int  # models of the chain that were not asked yet


@dataclass(frozen=True, slots=True)
class Retry:
    after_seconds: float


@dataclass(frozen=True, slots=True)
class Next:
    """`cooldown_seconds`: for how long the model is left alone by everybody; 0: it is not."""

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
    """None: the provider asks for more patience than a turn has."""
    # The exponent is bounded first: a chain may be configured with any number of retries.
    own = min(FIRST_WAIT_SECONDS * 2.0 ** min(tries - 1, 16), LONGEST_WAIT_SECONDS) * (1 - jitter / 2)
    if retry_after is None:
        return own
    return max(own, retry_after) if retry_after <= LONGEST_PATIENCE_SECONDS else None


def order(cooling: Sequence[bool]) -> tuple[int, ...]:
    """Which model is asked when. One that is to be left alone is the last resort, never left out: a turn that
    could be answered is not failed for politeness."""
    numbers = range(len(cooling))
    return (*(n for n in numbers if not cooling[n]), *(n for n in numbers if cooling[n]))
