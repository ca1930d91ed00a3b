"""Handlers for webhooks: add, list, remove and test them, and list their deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lastgood.errors import InvalidRequest
from lastgood.flows.webhooks import Webhooks
from lastgood.model.tokens import Scope
from lastgood.model.webhooks import Delivery, DeliveryState, Webhook, WebhookKind
from lastgood.surfaces.http.app import Route
from lastgood.surfaces.http.asgi import JSON, Request, Response, json_reply
from lastgood.surfaces.http.body_parser import StrictModel, parse, whole_number
from lastgood.surfaces.http.json_schema import COUNT, TEXT, or_null, schema_of
from lastgood.surfaces.http.resource import (
    Resource,
    ResourceField,
    list_of,
    optional,
    timestamp,
)

MOST_IN_PAGE = 200


class WebhookBody(StrictModel):
    """Without `kinds`, the webhook gets every kind."""

    url: str
    kinds: list[str] | None = None


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else timestamp(seconds)


WEBHOOK: Resource[Webhook] = Resource(
    ResourceField("id", TEXT, lambda one: one.id),
    ResourceField("url", TEXT, lambda one: one.url),
    ResourceField("kinds", list_of({"enum": [*WebhookKind]}), lambda one: list(one.kinds)),
    ResourceField("created_by", TEXT, lambda one: one.created_by),
    ResourceField("created_at", TEXT, lambda one: timestamp(one.created_at)),
    ResourceField("disabled_at", or_null(TEXT), lambda one: _moment(one.disabled_at)),
    optional("secret", TEXT),
)
DELIVERY: Resource[Delivery] = Resource(
    ResourceField("number", COUNT, lambda one: one.number),
    ResourceField("id", TEXT, lambda one: one.id),
    ResourceField("kind", TEXT, lambda one: one.kind),
    ResourceField("state", {"enum": [*DeliveryState]}, lambda one: one.state.value),
    ResourceField("tries", COUNT, lambda one: one.tries),
    ResourceField("last_error", or_null(TEXT), lambda one: one.last_error),
    ResourceField("created_at", TEXT, lambda one: timestamp(one.created_at)),
    ResourceField("due_at", or_null(TEXT), lambda one: _moment(one.due_at)),
    ResourceField("delivered_at", or_null(TEXT), lambda one: _moment(one.delivered_at)),
    ResourceField("session", or_null(TEXT), lambda one: one.session),
    ResourceField("turn", or_null(TEXT), lambda one: one.turn),
    ResourceField("task", or_null(TEXT), lambda one: one.task),
)

_FILTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "limit": ("Page size", {"type": "integer", "minimum": 1, "maximum": MOST_IN_PAGE}),
    "cursor": ("X-Next-Cursor of the previous page", {"type": "integer", "minimum": 0}),
    "state": ("Filter by state; `dead` lists dead letters", {"enum": [*DeliveryState]}),
}


class WebhookHandlers:
    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    async def add(self, request: Request) -> Response:
        """The only response that holds the secret."""
        body, caller = parse(WebhookBody, await request.json()), request.caller
        added, secret = await self._webhooks.add(caller.tenant, body.url, body.kinds, caller.setter)
        return json_reply(WEBHOOK.json(added) | {"secret": secret}, 201)

    async def list(self, request: Request) -> Response:
        return json_reply([WEBHOOK.json(one) for one in await self._webhooks.list(request.caller.tenant)])

    async def remove(self, request: Request) -> Response:
        caller = request.caller
        removed = await self._webhooks.remove(caller.tenant, request.path["webhook"], caller.setter)
        return json_reply(WEBHOOK.json(removed))

    async def test(self, request: Request) -> Response:
        queued = await self._webhooks.test(request.caller.tenant, request.path["webhook"])
        return json_reply(DELIVERY.json(queued), 202)

    async def deliveries(self, request: Request) -> Response:
        before = whole_number(request.query, "cursor", 0, most=2**62) or None
        limit = whole_number(request.query, "limit", 50, least=1, most=MOST_IN_PAGE)
        found = await self._webhooks.deliveries(
            request.caller.tenant,
            request.path["webhook"],
            _state(request.query.get("state")),
            limit=limit,
            before=before,
        )
        headers = {"x-next-cursor": str(found[-1].number)} if len(found) == limit else {}
        return json_reply([DELIVERY.json(one) for one in found], 200, headers)


def _state(name: str | None) -> DeliveryState | None:
    try:
        return DeliveryState(name) if name else None
    except ValueError:
        known = ", ".join(DeliveryState)
        raise InvalidRequest(f"Unknown state {name!r:.80}; use one of {known}", param="state") from None


def webhook_routes(webhooks: WebhookHandlers) -> Sequence[Route]:
    one = "/api/webhooks/{webhook}"
    return [
        Route(
            "POST",
            "/api/webhooks",
            webhooks.add,
            Scope.ADMIN,
            "Add a webhook; the response holds its secret, which is not shown again",
            takes=schema_of(WebhookBody),
            gives={201: {JSON: WEBHOOK.schema}},
        ),
        Route(
            "GET",
            "/api/webhooks",
            webhooks.list,
            Scope.ADMIN,
            "List webhooks without their secrets",
            gives={200: {JSON: list_of(WEBHOOK.schema)}},
        ),
        Route(
            "DELETE",
            one,
            webhooks.remove,
            Scope.ADMIN,
            "Remove a webhook and its deliveries",
            gives={200: {JSON: WEBHOOK.schema}},
        ),
        Route(
            "POST",
            f"{one}/test",
            webhooks.test,
            Scope.ADMIN,
            "Queue a test message for a webhook",
            gives={202: {JSON: DELIVERY.schema}},
        ),
        Route(
            "GET",
            f"{one}/deliveries",
            webhooks.deliveries,
            Scope.ADMIN,
            "List the deliveries of a webhook, newest first",
            gives={200: {JSON: list_of(DELIVERY.schema)}},
            query=_FILTERS,
        ),
    ]
