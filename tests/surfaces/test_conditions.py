"""Where a key or a condition is not looked at, it is refused: else it would be taken for one that holds."""

import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.surfaces.in_process_server import InProcessServer, open_inside

pytestmark = pytest.mark.anyio

CONDITIONS = ("if-match", "if-none-match", "if-unmodified-since", "idempotency-key")


@pytest.fixture(scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[InProcessServer]:
    async with open_inside(tmp_path_factory.mktemp("conditions")) as opened:
        yield opened


@pytest.mark.parametrize("name", CONDITIONS)
async def test_every_change_looks_at_a_condition_or_refuses_it(inside: InProcessServer, name: str) -> None:
    asked = [route for route in inside.routes if route.method != "GET" and name not in route.headers]
    assert any(route.path.startswith("/api/") for route in asked)
    condition: dict[str, Any] = {name: "*"}
    before = inside.dump()
    for route in asked:
        given = await inside.ask(route.method, re.sub(r"{\w+}", "x", route.path), {}, **condition)
        assert (given.status, given.code) == (400, "invalid_request"), route.path
        assert f"`{name.title()}` is not supported" in given.json["error"]["message"], route.path
        assert ("type" in given.json["error"]) == route.path.startswith("/v1/"), "each in its own envelope"
    assert inside.dump() == before


@pytest.mark.parametrize("name", CONDITIONS)
async def test_what_only_reads_lets_them_be(inside: InProcessServer, name: str) -> None:
    """Caches and proxies send them of their own accord, and nothing depends on them."""
    condition: dict[str, Any] = {name: "*"}
    for path in ("/health", "/v1/models", "/api/sessions"):
        assert (await inside.ask("GET", path, **condition)).status == 200


async def test_an_unknown_condition_is_rejected(inside: InProcessServer) -> None:
    session = await inside.session()
    body = {"messages": [{"content": "hello"}], "wait": True}
    path = f"/api/sessions/{session}/turns"
    given = await inside.ask("POST", path, body, if_none_match='"turn_x"')
    assert (given.status, given.code) == (400, "invalid_request")
    assert (await inside.ask("POST", path, body, if_none_match=" * ")).status == 200
    assert (await inside.ask("POST", path, body, if_none_match="*")).status == 412
