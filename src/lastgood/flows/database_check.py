"""Checks a whole database: every row of every tenant that a prompt is built from, once.

The check reads one moment of the database, so it can run beside a server. It keeps nothing but its
findings. Each turn is verified against what is stored of the one before it: if every turn follows from its
parent and every head is a turn as it is stored, then every chain is whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from lastgood.core.commit import damage_of
from lastgood.errors import DatabaseDamaged
from lastgood.model.stored_rows import StoredRow, StoredTable, StoredTurn
from lastgood.ports import Inspection, Store

#: Findings that are kept; of more, only the number.
MOST_FINDINGS = 1000

Progress = Callable[[StoredTable, int], None]


@dataclass(frozen=True, slots=True)
class DamagedRow:
    """`tenant` and `session` are empty where the row itself does not say them any more."""

    tenant: str
    session: str
    what: str
    problem: str


@dataclass(slots=True)
class CheckReport:
    rows: Counter[StoredTable] = field(default_factory=Counter)
    tenants: set[str] = field(default_factory=set)
    findings: list[DamagedRow] = field(default_factory=list)
    more: int = 0  # findings that are not listed

    @property
    def is_good(self) -> bool:
        return not self.findings

    def add(self, tenant: str, session: str, what: str, problem: str) -> None:
        if len(self.findings) < MOST_FINDINGS:
            self.findings.append(DamagedRow(tenant, session, what, problem))
        else:
            self.more += 1


async def check_database(store: Store, progress: Progress = lambda _table, _rows: None) -> CheckReport:
    report = CheckReport()
    async with store.inspect() as look:
        for problem in await look.structure():
            report.add("", "", "the database", problem)
        for table in StoredTable:
            try:
                await _check_table(look, table, report, progress)
            except DatabaseDamaged as error:
                after = f"after {report.rows[table]} rows"
                report.add("", "", f"the table {table.value}", f"it cannot be read {after}: {error.message}")
    return report


async def _check_table(look: Inspection, table: StoredTable, report: CheckReport, progress: Progress) -> None:
    before: StoredTurn | None = None
    async for row in look.rows(table):
        report.rows[table] += 1
        progress(table, report.rows[table])
        match row:
            case StoredTurn(tenant, turn):
                what = f"turn {turn.seq} ({turn.id})"
                problem = _problem_of(row, before)
                before = row
                if problem:
                    report.add(tenant, turn.session, what, problem)
                if not row.is_reached:
                    report.add(tenant, turn.session, what, "no session references it")
            case StoredRow(tenant, session, what, problem):
                if table is StoredTable.SESSIONS:
                    report.tenants.add(tenant)
                if problem:
                    report.add(tenant, session, what, problem)


def _problem_of(stored: StoredTurn, before: StoredTurn | None) -> str | None:
    """`before` is the turn that was read before it."""
    turn = stored.turn
    if not turn.damage and turn.parent is not None:
        if stored.parent is None:
            return f"its parent, turn {turn.parent}, is missing or cannot be read"
        if stored.parent_tenant != stored.tenant:
            return f"its parent, turn {turn.parent}, belongs to another tenant"
    # Chains are read by segment and number, so these have to agree with what follows what.
    if before is None or before.segment != stored.segment:
        if stored.segment not in (turn.session, turn.id):
            return "its segment was not started by a create, fork or edit"
    elif (before.turn.id, before.turn.session) != (turn.parent, turn.session):
        return "it does not follow the previous turn of its segment"
    return damage_of(stored.parent, turn)
