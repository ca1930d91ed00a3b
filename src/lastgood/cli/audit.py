"""`lastgood audit`: lists audit records of the local database."""

from __future__ import annotations

import argparse
import asyncio
from datetime import UTC, datetime
from typing import Any

from lastgood.cli.output import one_line, print_json, print_line
from lastgood.cli.parser import CommandParser, configure_command
from lastgood.cli.startup import settings_of
from lastgood.model.audit import AuditFilter, AuditKind, AuditRecord
from lastgood.model.ids import DEFAULT_TENANT, TenantId
from lastgood.settings import Settings
from lastgood.store.database_url import open_store

_PAGE = 500


def configure(parser: CommandParser) -> None:
    configure_command(
        parser,
        run_audit,
        json="print one JSON object per line",
        details="Reads the local database, also while a server uses it. Over HTTP: GET /api/audit.",
    )
    parser.add_argument(
        "--kind",
        metavar="KIND",
        choices=[kind.value for kind in AuditKind],
        help=f"print only records of this kind: {', '.join(AuditKind)}",
    )
    parser.add_argument("--subject", metavar="ID", help="print only records about this session, token, …")
    parser.add_argument("--by", metavar="USER", help="print only records of this user's tokens")
    parser.add_argument(
        "--tenant", metavar="TENANT", default=DEFAULT_TENANT, help="print the records of this tenant"
    )


def run_audit(args: argparse.Namespace) -> int:
    kind = AuditKind(args.kind) if args.kind else None
    wanted = AuditFilter(kind, args.subject, args.by)
    asyncio.run(_print(settings_of(args), TenantId(args.tenant), wanted, as_json=args.json))
    return 0


async def _print(settings: Settings, tenant: TenantId, wanted: AuditFilter, *, as_json: bool) -> None:
    store = await open_store(settings.database, read_only=True)
    try:
        after = 0
        while page := await store.list_audit(tenant, wanted, limit=_PAGE, after=after):
            for record in page:
                if as_json:
                    print_json(_as_json(record))
                else:
                    print_line(_line(record))
            after = page[-1].number
    finally:
        await store.close()


def _as_json(record: AuditRecord) -> dict[str, Any]:
    entry = record.entry
    return {
        "number": record.number,
        "at": _time(record.at),
        "kind": entry.kind.value,
        "token": entry.actor,
        "user": entry.user,
        "machine": entry.machine,
        "subject": entry.subject,
        "detail": dict(entry.detail),
    }


def _line(record: AuditRecord) -> str:
    entry, detail = record.entry, record.entry.detail
    who = f"{entry.user} ({entry.actor})" if entry.user else entry.actor or "nobody"
    who += f" at {entry.machine}" if entry.machine else ""
    what = " ".join(str(detail[name]) for name in ("decision", "tool", "arguments") if detail.get(name))
    return one_line(f"{_time(record.at)}  {entry.kind.value}  {who}  {entry.subject}  {what}".rstrip())


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
