"""`lastgood db`: checks, copies, restores, measures and upgrades the database."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import closing

from lastgood.cli.db_copies import add_copies
from lastgood.cli.db_stats import add_stats
from lastgood.cli.output import ProgressLine, count, one_line, print_json, print_line
from lastgood.cli.parser import CommandParser, add_command, add_commands
from lastgood.cli.startup import settings_of
from lastgood.flows.database_check import CheckReport, DamagedRow, check_database
from lastgood.model.stored_rows import StoredTable
from lastgood.settings import Settings
from lastgood.store.database_url import open_store

_NAMES = {
    StoredTable.SESSIONS: ("session", "sessions"),
    StoredTable.TURNS: ("turn", "turns"),
    StoredTable.BRANCHES: ("branch", "branches"),
    StoredTable.ATTEMPTS: ("attempt", "attempts"),
    StoredTable.STEPS: ("step", "steps"),
    StoredTable.REQUESTS: ("request", "requests"),
    StoredTable.QUEUED: ("queue entry", "queue entries"),
    StoredTable.TASKS: ("task", "tasks"),
    StoredTable.CLAIMS: ("claim", "claims"),
    StoredTable.POINTERS: ("pointer", "pointers"),
    StoredTable.SNAPSHOTS: ("snapshot", "snapshots"),
}


def configure(parser: CommandParser) -> None:
    commands = add_commands(parser)
    add_command(
        commands,
        "check",
        run_check,
        "check the sessions of all tenants for damage",
        json="print one JSON object",
        details="Verifies the database file, the hashes of turns and the checksums of steps and inputs. "
        "Changes nothing and can run while a server uses the database. Exits with 1 if anything is damaged.",
    )
    add_copies(commands)
    add_stats(commands)


def run_check(args: argparse.Namespace) -> int:
    report = asyncio.run(_check(settings_of(args)))
    if args.json:
        print_json(_as_json(report))
    else:
        _print(report)
    return 0 if report.is_good else 1


async def _check(settings: Settings) -> CheckReport:
    """Can run beside a server: takes no lock and changes nothing."""
    store = await open_store(settings.database, read_only=True)
    try:
        with closing(ProgressLine()) as line:
            return await check_database(
                store, lambda table, rows: line.show(f"checking {table.value}: {rows:,} rows")
            )
    finally:
        await store.close()


def _as_json(report: CheckReport) -> dict[str, object]:
    counts = {table.value: report.rows[table] for table in StoredTable}
    broken = [
        {"tenant": one.tenant, "session": one.session, "what": one.what, "problem": one.problem}
        for one in report.findings
    ]
    return {"tenants": len(report.tenants), **counts, "broken": broken, "more": report.more}


def _print(report: CheckReport) -> None:
    for finding in report.findings:
        print_line(one_line(f"{_where(finding)}{finding.what}: {finding.problem}"))
    if report.more:
        print_line(f"and {report.more:,} more")
    counts = [f"{report.rows[table]} {_NAMES[table][report.rows[table] != 1]}" for table in StoredTable]
    checked = f"{', '.join(counts[:-1])} and {counts[-1]} of {count(len(report.tenants), 'tenant')}"
    found = len(report.findings) + report.more
    verdict = f"{count(found, 'problem')} found" if found else "no damage"
    print_line(f"checked {checked}: {verdict}")


def _where(finding: DamagedRow) -> str:
    if not finding.session:
        return ""
    return f"tenant {finding.tenant}, session {finding.session}, "
