"""`lastgood webhooks`: adds, lists, tests and removes webhooks, and lists what was sent to them."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lastgood.cli.output import one_line, print_json, print_line, remark, timestamp, when
from lastgood.cli.parser import CommandParser, add_command, add_commands
from lastgood.cli.startup import settings_of
from lastgood.errors import InvalidRequest, WrongUsage
from lastgood.flows.webhooks import Webhooks
from lastgood.model.ids import DEFAULT_TENANT, TenantId
from lastgood.model.webhooks import Delivery, DeliveryState, Webhook, WebhookKind
from lastgood.store.database_url import open_administration
from lastgood.wiring import SystemClock

_PAGE = 100
_TEST_SECONDS = 15.0
_LOOK_SECONDS = 0.25


def configure(parser: CommandParser) -> None:
    commands = add_commands(parser)
    adding = add_command(
        commands,
        "add",
        add_webhook,
        "add a webhook and print its secret once",
        json="print a JSON object that contains the secret",
        details="A running server uses it at once. Over HTTP: POST /api/webhooks.",
    )
    adding.add_argument("url", metavar="URL", help="receiver: https://…, or http:// on this machine")
    adding.add_argument(
        "--kind",
        metavar="KIND",
        action="append",
        help=f"send only these events: {', '.join(WebhookKind)}; repeatable; default: all",
    )
    listing = add_command(
        commands, "list", list_webhooks, "list webhooks without their secrets", json="print a JSON array"
    )
    removing = add_command(
        commands, "remove", remove_webhook, "remove a webhook and its deliveries", json="print a JSON object"
    )
    testing = add_command(
        commands,
        "test",
        test_webhook,
        f"send a test message and wait up to {_TEST_SECONDS:g} s for the result",
        json="print a JSON object",
        details="The message is sent by a running server.",
    )
    deliveries = add_command(
        commands,
        "deliveries",
        list_deliveries,
        f"list the newest {_PAGE} deliveries of a webhook",
        json="print a JSON array",
    )
    deliveries.add_argument(
        "--state",
        metavar="STATE",
        choices=[state.value for state in DeliveryState],
        help=f"list only deliveries in this state: {', '.join(DeliveryState)} (dead letters)",
    )
    for one in (removing, testing, deliveries):
        one.add_argument("id", metavar="ID", help="webhook id, as shown by `lastgood webhooks list`")
    for one in (adding, listing, removing, testing, deliveries):
        one.add_argument(
            "--tenant", metavar="T", default=DEFAULT_TENANT, help="tenant of the webhook; default: default"
        )


def add_webhook(args: argparse.Namespace) -> int:
    added, secret = asyncio.run(_add(args))
    # The remark comes first: if printing the secret fails, its id is known and it can be removed.
    remark(f"added {added.id}; save the secret now, it is not shown again")
    if args.json:
        print_json(_webhook_json(added) | {"secret": secret})
    else:
        print_line(secret)
    return 0


async def _add(args: argparse.Namespace) -> tuple[Webhook, str]:
    async with _webhooks(args) as webhooks:
        try:
            return await webhooks.add(TenantId(args.tenant), args.url, args.kind)
        except InvalidRequest as error:  # of what it is given, and that is arguments
            raise WrongUsage(error.message) from None


def list_webhooks(args: argparse.Namespace) -> int:
    async def read() -> tuple[Webhook, ...]:
        async with _webhooks(args) as webhooks:
            return await webhooks.list(TenantId(args.tenant))

    found = asyncio.run(read())
    if args.json:
        print_json([_webhook_json(one) for one in found])
    elif not found:
        print_line("no webhooks")
    else:
        for one in found:
            state = "enabled" if one.disabled_at is None else "disabled"
            kinds = ", ".join(one.kinds)
            print_line(f"{one.id}  {when(one.created_at)}  {state:8}  {one_line(one.url)}  {kinds}")
    return 0


def remove_webhook(args: argparse.Namespace) -> int:
    async def remove() -> Webhook:
        async with _webhooks(args) as webhooks:
            return await webhooks.remove(TenantId(args.tenant), args.id)

    removed = asyncio.run(remove())
    if args.json:
        print_json(_webhook_json(removed))
    else:
        print_line(f"removed {removed.id}")
    return 0


def test_webhook(args: argparse.Namespace) -> int:
    result = asyncio.run(_test(args))
    if args.json:
        print_json(_delivery_json(result))
    elif result.state is DeliveryState.DELIVERED:
        print_line(f"delivered {result.id}")
    elif result.last_error:
        print_line(f"failed: {one_line(result.last_error)}")
    else:
        print_line(f"{result.id} was not sent yet; is a server running on this database?")
    return 0 if result.state is DeliveryState.DELIVERED else 1


async def _test(args: argparse.Namespace) -> Delivery:
    tenant = TenantId(args.tenant)
    async with _webhooks(args) as webhooks:
        queued = await webhooks.test(tenant, args.id)
        ends = time.monotonic() + _TEST_SECONDS
        while True:
            found = await webhooks.deliveries(tenant, args.id, limit=1, before=queued.number + 1)
            now = next((one for one in found if one.id == queued.id), queued)
            if now.last_error or now.state is not DeliveryState.PENDING or time.monotonic() > ends:
                return now
            await asyncio.sleep(_LOOK_SECONDS)


def list_deliveries(args: argparse.Namespace) -> int:
    async def read() -> tuple[Delivery, ...]:
        state = DeliveryState(args.state) if args.state else None
        async with _webhooks(args) as webhooks:
            return await webhooks.deliveries(TenantId(args.tenant), args.id, state, limit=_PAGE)

    found = asyncio.run(read())
    if args.json:
        print_json([_delivery_json(one) for one in found])
    elif not found:
        print_line("no deliveries")
    else:
        for one in found:
            tries = f"{one.tries} tries" if one.tries != 1 else "1 try"
            error = f"  {one_line(one.last_error)}" if one.last_error else ""
            print_line(f"{one.id}  {when(one.created_at)}  {one.state.value:9}  {tries}  {one.kind}{error}")
    return 0


@asynccontextmanager
async def _webhooks(args: argparse.Namespace) -> AsyncIterator[Webhooks]:
    settings = settings_of(args)
    async with open_administration(settings.database, settings.migrate) as store:
        yield Webhooks(store, SystemClock())


def _webhook_json(webhook: Webhook) -> dict[str, Any]:
    return {
        "id": webhook.id,
        "tenant": webhook.tenant,
        "url": webhook.url,
        "kinds": list(webhook.kinds),
        "created_by": webhook.created_by,
        "created_at": timestamp(webhook.created_at),
        "disabled_at": timestamp(webhook.disabled_at),
    }


def _delivery_json(delivery: Delivery) -> dict[str, Any]:
    return {
        "id": delivery.id,
        "kind": delivery.kind,
        "state": delivery.state.value,
        "tries": delivery.tries,
        "last_error": delivery.last_error,
        "created_at": timestamp(delivery.created_at),
        "due_at": timestamp(delivery.due_at),
        "delivered_at": timestamp(delivery.delivered_at),
        "session": delivery.session,
        "turn": delivery.turn,
        "task": delivery.task,
    }
