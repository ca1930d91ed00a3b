"""What is counted, as Prometheus reads it."""

import asyncio

import pytest

from lastgood.surfaces.http.app import AnsweredRequest, ResponseEnd, Route
from lastgood.surfaces.http.asgi import Reply, Request, Response
from lastgood.surfaces.http.metrics import Metrics
from tests.surfaces.asgi import route
from tests.surfaces.prometheus import families

pytestmark = pytest.mark.anyio


async def nothing(request: Request) -> Response:
    return Reply(200)


ROUTE = route("GET", "/things/{thing}", nothing)


def seen(route: Route | None, status: int, seconds: float, method: str = "GET") -> AnsweredRequest:
    async def receive() -> dict[str, object]:
        raise AssertionError

    ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    request = Request(method, '/things/a"b\\c\nd', "", {}, "", "1", receive, ending)
    return AnsweredRequest(request, route, status, ResponseEnd.SENT, seconds)


def labels(**pairs: str) -> frozenset[tuple[str, str]]:
    return frozenset(pairs.items())


async def test_every_state_of_the_counters_is_valid_text() -> None:
    counts = Metrics()
    families(counts.text())
    counts.gauges["lastgood_turns_running"] = ("turns running on this server", lambda: 3)
    counts.turns.update(["committed", "committed", "failed"])
    for one in (
        seen(ROUTE, 200, 0.001),
        seen(ROUTE, 200, 100.0),
        seen(ROUTE, 500, 0.3),
        seen(None, 404, 0.0),
    ):
        counts.request(one)
    found = families(counts.text())
    requests = found["lastgood_http_requests_total"].samples
    name = "lastgood_http_requests_total"
    assert requests[name, labels(method="GET", route="/things/{thing}", status="200")] == 2
    assert requests[name, labels(method="GET", route="/things/{thing}", status="500")] == 1
    assert requests[name, labels(method="none", route="none", status="404")] == 1
    assert found["lastgood_turns_total"].samples["lastgood_turns_total", labels(outcome="committed")] == 2
    assert found["lastgood_turns_running"].samples["lastgood_turns_running", labels()] == 3
    took = found["lastgood_http_request_seconds"].samples
    name = "lastgood_http_request_seconds"
    assert took[f"{name}_count", labels(route="/things/{thing}")] == 3
    assert took[f"{name}_bucket", labels(route="/things/{thing}", le="0.005")] == 1
    assert took[f"{name}_bucket", labels(route="/things/{thing}", le="0.5")] == 2
    assert took[f"{name}_sum", labels(route="/things/{thing}")] == pytest.approx(100.301)


async def test_unauthenticated_requests_cannot_create_metric_series() -> None:
    """Of an address or a method that nobody knows, only that there was one is counted."""
    counts = Metrics()
    for number in range(100):
        counts.request(seen(None, 405, 0.0, method=f"M{number}"))
    requests = families(counts.text())["lastgood_http_requests_total"].samples
    assert list(requests.values()) == [100]
