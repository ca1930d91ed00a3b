"""Who may use the routes of webhooks, and whose webhooks they see (I35, I37)."""

from pathlib import Path

import pytest

from lastgood.model.tokens import Scope
from tests.surfaces.in_process_server import AGENT, open_inside

pytestmark = pytest.mark.anyio

TOKENS = {
    **{scope.value: ("a", (scope.value,)) for scope in Scope},
    "theirs": ("b", ("admin",)),
}


async def test_only_an_admin_of_the_tenant_reaches_a_webhook(tmp_path: Path) -> None:
    async with open_inside(tmp_path, AGENT, tokens=TOKENS) as inside:
        new = {"url": "https://example.com", "kinds": ["task.ended"]}
        made = await inside.ask("POST", "/api/webhooks", new, "admin")
        assert made.status == 201
        one = f"/api/webhooks/{made.json['id']}"
        asked = [
            ("POST", "/api/webhooks", new),
            ("GET", "/api/webhooks", None),
            ("GET", f"{one}/deliveries", None),
            ("POST", f"{one}/test", None),
            ("DELETE", one, None),
        ]
        for method, path, body in asked:
            assert (await inside.ask(method, path, body, None)).status == 401
            for scope in set(Scope) - {Scope.ADMIN}:
                assert (await inside.ask(method, path, body, scope.value)).status == 403, (path, scope)
        assert (await inside.ask("GET", "/api/webhooks", None, "theirs")).json == []
        for method, path, body in asked[2:]:
            assert (await inside.ask(method, path, body, "theirs")).status == 404, path
        assert [each["id"] for each in (await inside.ask("GET", "/api/webhooks", None, "admin")).json] == [
            made.json["id"]
        ]
