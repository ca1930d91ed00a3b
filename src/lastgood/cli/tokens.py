"""`lastgood tokens`: creates, lists and revokes API tokens."""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from lastgood.cli.backend import check_place
from lastgood.cli.output import one_line, print_json, print_line, remark, timestamp, when
from lastgood.cli.parser import CommandParser, Commands, add_command, add_commands, add_server
from lastgood.cli.startup import settings_of
from lastgood.client.work_models import EnrollmentInfo
from lastgood.errors import InvalidRequest, NoDatabase, WrongUsage
from lastgood.flows.tokens import SECONDS_KEPT, Tokens
from lastgood.flows.work.enrollment import check_worker
from lastgood.model.ids import TenantId
from lastgood.model.tokens import Scope, Token
from lastgood.store.database_url import open_administration, open_store
from lastgood.wiring import SystemClock

_DEFAULT_SCOPES = "chat,session"


def configure(parser: CommandParser) -> None:
    commands = add_commands(parser)
    _configure_create(commands)
    add_command(
        commands,
        "list",
        list_tokens,
        "list API tokens without their secrets",
        json="print a JSON array",
    )
    _configure_enroll(commands)
    revoke = add_command(
        commands,
        "revoke",
        revoke_token,
        "revoke an API token permanently",
        json="print a JSON object",
        details="Running servers reject the token within a few seconds.",
    )
    revoke.add_argument("id", metavar="ID", help="token id, as shown by `lastgood tokens list`")


def _configure_create(commands: Commands) -> None:
    create = add_command(
        commands,
        "create",
        create_token,
        "create an API token and print it once",
        json="print a JSON object that contains the token",
        details="A running server accepts the token at once, unless it was started before the first token "
        "existed: then restart it.",
    )
    create.add_argument("--name", metavar="NAME", default="token", help="describe the token; default: token")
    create.add_argument(
        "--tenant", metavar="T", default="default", help="limit the token to this tenant; default: default"
    )
    create.add_argument(
        "--scope",
        metavar="SCOPES",
        action="append",
        help="grant these scopes, separated by commas: chat (/v1), read, session (use and change sessions), "
        f"approve, worker, admin (everything); default: {_DEFAULT_SCOPES}, or worker with --worker",
    )
    create.add_argument("--user", metavar="USER", default="", help="act as this user; default: no user")
    create.add_argument(
        "--worker",
        metavar="ID",
        help="limit a token with the scope worker to this worker; default: the first that registers",
    )
    create.add_argument(
        "--expires",
        metavar="TIME",
        type=_seconds,
        help="expire the token after this long: 12h, 30d; default: never",
    )


def _configure_enroll(commands: Commands) -> None:
    enrolling = add_command(
        commands,
        "enroll",
        create_enrollment,
        "create a one-time code with which a new machine becomes a worker of yours",
        json="print a JSON object that contains the code",
        details="The machine runs `lastgood worker enroll CODE`. Its runtimes belong to your token's user.",
    )
    enrolling.add_argument("--worker", metavar="ID", help="name the worker; default: a random id")
    enrolling.add_argument(
        "--expires", metavar="TIME", type=_seconds, help="expire the code after this long; default: 10m"
    )
    add_server(enrolling)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a duration; use a number and a unit: 90s, 30m, 12h, 30d"
        )
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def create_token(args: argparse.Namespace) -> int:
    token, plain, is_first = asyncio.run(_create(args))
    # The remark comes first: if printing the token fails, its id is known and it can be revoked.
    remark(f"created {token.id} for {_what(token)}; save the token now, it is not shown again")
    if is_first:
        remark("it is the first token: from its next start on, the server requires one for every request")
    if args.json:
        print_json(_token_json(token) | {"token": plain})
    else:
        print_line(plain)
    return 0


async def _create(args: argparse.Namespace) -> tuple[Token, str, bool]:
    """The token, its secret, and whether it is the first one."""
    default = _DEFAULT_SCOPES if args.worker is None else Scope.WORKER.value
    scopes = [name.strip() for part in args.scope or [default] for name in part.split(",")]
    if args.worker is not None and Scope.WORKER.value not in scopes:
        raise WrongUsage("--worker needs the scope worker; add it to --scope, or leave --scope out")
    async with _open_to_write(args) as tokens:
        try:
            worker = None if args.worker is None else check_worker(args.worker)
            token, plain = await tokens.create(
                args.name, TenantId(args.tenant), scopes, args.expires, user=args.user, worker=worker
            )
        except InvalidRequest as error:  # of what it is given, and that is options
            raise WrongUsage(error.message) from None
        return token, plain, len(await tokens.list()) == 1


def create_enrollment(args: argparse.Namespace) -> int:
    check_place(args)
    if args.server is None:
        raise WrongUsage("--server is missing; name the server that the new machine connects to")
    made = asyncio.run(_enroll(args))
    remark(f"valid until {when(made.expires_at.timestamp())}; on the new machine, run")
    remark(f"  lastgood worker enroll --server {args.server} {made.code}")
    if args.json:
        expires = made.expires_at.isoformat().replace("+00:00", "Z")
        print_json({"code": made.code, "worker_id": made.worker, "expires_at": expires})
    else:
        print_line(made.code)
    return 0


async def _enroll(args: argparse.Namespace) -> EnrollmentInfo:
    from lastgood.cli.remote import connect  # an HTTP client only where it is used

    async with connect(args) as client:
        return await client.enroll(worker=args.worker, seconds=args.expires)


def list_tokens(args: argparse.Namespace) -> int:
    tokens = asyncio.run(_list(args))
    if args.json:
        print_json([_token_json(token) for token in tokens])
    elif not tokens:
        print_line("no tokens")
    else:
        for token in tokens:
            print_line(f"{token.id}  {when(token.created_at)}  {_state(token):7}  {_what(token)}")
    return 0


async def _list(args: argparse.Namespace) -> tuple[Token, ...]:
    try:
        store = await open_store(settings_of(args).database, read_only=True)
    except NoDatabase as error:
        remark(error.message)
        return ()
    try:
        return await Tokens(store, SystemClock()).list()
    finally:
        await store.close()


def revoke_token(args: argparse.Namespace) -> int:
    token = asyncio.run(_revoke(args))
    remark(f"running servers reject the token within {SECONDS_KEPT:g} seconds")
    if args.json:
        print_json(_token_json(token))
    else:
        assert token.revoked_at is not None
        print_line(f"revoked {token.id} at {when(token.revoked_at)}: {one_line(token.name)}")
    return 0


async def _revoke(args: argparse.Namespace) -> Token:
    async with _open_to_write(args) as tokens:
        return await tokens.revoke(args.id)


@asynccontextmanager
async def _open_to_write(args: argparse.Namespace) -> AsyncIterator[Tokens]:
    """Only the store: tokens need no agents and no engine, and nothing is recovered."""
    settings = settings_of(args)
    async with open_administration(settings.database, settings.migrate) as store:
        yield Tokens(store, SystemClock())


# -- for people and for scripts ------------------------------------------------


def _state(token: Token) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "valid" if token.is_valid(time.time()) else "expired"


def _what(token: Token) -> str:
    end = "" if token.expires_at is None else f" until {when(token.expires_at)}"
    scopes = ", ".join(sorted(token.scopes))
    whose = f", user {one_line(token.user)}" if token.user else ""
    whose += f", worker {one_line(token.worker)}" if token.worker else ""
    return f"{one_line(token.name)!r}, tenant {one_line(token.tenant)}{whose}: {scopes}{end}"


def _token_json(token: Token) -> dict[str, Any]:
    """Without the hash; only the creator knows the token itself."""
    return {
        "id": token.id,
        "tenant": token.tenant,
        "name": token.name,
        "user": token.user,
        "worker_id": token.worker,
        "scopes": sorted(token.scopes),
        "state": _state(token),
        "created_at": timestamp(token.created_at),
        "expires_at": timestamp(token.expires_at),
        "revoked_at": timestamp(token.revoked_at),
    }
