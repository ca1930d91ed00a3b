"""Nobody notices what a neighbour sends (I23, I40)."""

from collections.abc import Iterator

import pytest

from tests.e2e.api import Api
from tests.e2e.neighbours import REQUESTS, beside, neighbourhood

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Api, Api]]:
    with neighbourhood(tmp_path_factory.mktemp("neighbours")) as apis:
        yield apis


@pytest.mark.parametrize("request_of", REQUESTS)
def test_I23_I40_a_neighbours_request_neither_stalls_nor_fails_a_running_turn(
    two: tuple[Api, Api], request_of: str
) -> None:
    found = beside(*two, request_of)
    print(found)
    assert found.failed == [], str(found)
    assert found.committed > 0, str(found)
    assert found.is_short_on_any_machine, str(found)
