"""What follows when a model did not answer, as a table."""

import pytest

from lastgood.core.fallback import (
    FIRST_WAIT_SECONDS,
    LONGEST_COOLDOWN_SECONDS,
    LONGEST_PATIENCE_SECONDS,
    LONGEST_WAIT_SECONDS,
    Decision,
    ModelFailure,
    Next,
    NoMoreModels,
    Retry,
    after_failure,
    order,
)
from lastgood.errors import (
    ContextOverflow,
    KeyRefused,
    ModelError,
    ModelGarbled,
    ModelOverloaded,
    ModelUnknown,
    ModelUnreachable,
    ProviderRateLimited,
    QuotaUsedUp,
)

PASSING = [ProviderRateLimited, ModelOverloaded, ModelUnreachable]
LASTING = [KeyRefused, QuotaUsedUp, ModelGarbled, ModelError, ModelUnknown]


def decide(
    error: ModelError | ModelUnknown,
    *,
    spoken: bool = False,
    tries: int = 1,
    others: int = 0,
    retries: int = 2,
    jitter: float = 0.0,
) -> Decision:
    failed = ModelFailure(error, spoken, tries, others)
    return after_failure(failed, retries=retries, cooldown_seconds=60.0, jitter=jitter)


def asks_for(error: ModelError, seconds: float) -> ModelError:
    error.retry_after = seconds
    return error


@pytest.mark.parametrize("kind", [*PASSING, *LASTING, ContextOverflow])
@pytest.mark.parametrize("others", [0, 1])
def test_after_the_first_output_nothing_is_retried(kind: type[ModelError], others: int) -> None:
    assert isinstance(decide(kind(), spoken=True, others=others), NoMoreModels)


@pytest.mark.parametrize("others", [0, 1])
def test_a_conversation_that_is_too_long_goes_back_to_the_caller(others: int) -> None:
    assert isinstance(decide(ContextOverflow(), others=others), NoMoreModels)


@pytest.mark.parametrize("kind", LASTING)
def test_what_does_not_pass_goes_to_the_next_model_at_once(kind: type[ModelError]) -> None:
    assert decide(kind(), others=1) == Next()
    assert isinstance(decide(kind(), others=0), NoMoreModels)


@pytest.mark.parametrize("kind", [ModelOverloaded, ModelUnreachable])
@pytest.mark.parametrize("others", [0, 2])
def test_what_passes_is_tried_again_before_another_model_is(kind: type[ModelError], others: int) -> None:
    assert decide(kind(), tries=1, others=others) == Retry(FIRST_WAIT_SECONDS)
    assert decide(kind(), tries=2, others=others) == Retry(2 * FIRST_WAIT_SECONDS)
    last = decide(kind(), tries=3, others=others)
    assert last == Next() if others else isinstance(last, NoMoreModels)


def test_too_many_requests_cools_the_model_when_there_is_another() -> None:
    assert decide(ProviderRateLimited(), others=1) == Next(60.0)
    assert decide(asks_for(ProviderRateLimited(), 90.0), others=1) == Next(90.0)
    assert decide(asks_for(ProviderRateLimited(), 1e9), others=1) == Next(LONGEST_COOLDOWN_SECONDS)


def test_too_many_requests_of_the_only_model_is_waited_out() -> None:
    assert decide(ProviderRateLimited(), tries=1) == Retry(FIRST_WAIT_SECONDS)
    assert decide(asks_for(ProviderRateLimited(), 7.0)) == Retry(7.0)
    assert isinstance(decide(ProviderRateLimited(), tries=3), NoMoreModels)


@pytest.mark.parametrize("seconds", [0.0, 0.1])
def test_our_own_wait_is_the_least(seconds: float) -> None:
    assert decide(asks_for(ModelOverloaded(), seconds)) == Retry(FIRST_WAIT_SECONDS)


def test_a_provider_that_asks_for_too_much_patience_is_not_waited_for() -> None:
    assert decide(asks_for(ModelOverloaded(), LONGEST_PATIENCE_SECONDS)) == Retry(LONGEST_PATIENCE_SECONDS)
    too_long = asks_for(ModelOverloaded(), LONGEST_PATIENCE_SECONDS + 0.1)
    assert isinstance(decide(too_long), NoMoreModels)
    assert decide(too_long, others=1) == Next()


def test_waits_double_up_to_the_longest() -> None:
    waits = [decide(ModelOverloaded(), tries=n, retries=5000) for n in (1, 2, 3, 4, 5, 6, 5000)]
    assert waits == [Retry(s) for s in (0.5, 1.0, 2.0, 4.0, LONGEST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, 8.0)]


def test_jitter_shortens_a_wait_by_at_most_a_half() -> None:
    assert decide(ModelOverloaded(), jitter=1.0) == Retry(FIRST_WAIT_SECONDS / 2)
    assert decide(ModelOverloaded(), jitter=0.5) == Retry(FIRST_WAIT_SECONDS * 0.75)


def test_no_retries_means_none() -> None:
    assert isinstance(decide(ModelOverloaded(), retries=0), NoMoreModels)
    assert decide(ModelOverloaded(), retries=0, others=1) == Next()


@pytest.mark.parametrize(
    ("cooling", "expected"),
    [
        ([], ()),
        ([False], (0,)),
        ([True], (0,)),
        ([False, False, False], (0, 1, 2)),
        ([True, False, False], (1, 2, 0)),
        ([True, False, True], (1, 0, 2)),
        ([True, True], (0, 1)),
    ],
)
def test_a_model_in_cooldown_is_the_last_resort(cooling: list[bool], expected: tuple[int, ...]) -> None:
    assert order(cooling) == expected
