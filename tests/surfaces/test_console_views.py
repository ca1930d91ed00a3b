"""What the console says about a value."""

import pytest

from lastgood.surfaces.console.views import runtime_view
from tests.core.test_runtimes import runtime


@pytest.mark.parametrize(
    ("seconds", "online", "seen"),
    [
        (5.0, True, "seen 5.0 s ago"),
        (400.0, False, "seen 6 min 40 s ago"),
        (1.79e9, False, "its worker has stopped"),  # since 1970: it has deregistered
    ],
)
def test_a_runtime_says_when_it_was_seen_or_that_its_worker_has_stopped(
    seconds: float, online: bool, seen: str
) -> None:
    shown = runtime_view(runtime(seen_seconds_ago=seconds))
    assert (shown["online"], shown["seen"]) == (online, seen)
