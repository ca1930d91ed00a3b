"""What a database needs after a restore, on either database.

A backup is a moment that is over. Clients and workers have seen what came after it: event numbers, fences,
claim tokens, ids of queue entries. None of these may be given a second time with another meaning. Running
work in the backup stays as it is, and recovery treats it as after a crash at that moment.
"""

from __future__ import annotations

import platform

from lastgood.model.audit import AuditKind
from lastgood.store.rows import writable
from lastgood.store.work_access import Statements, WorkTransactions

#: If the clock is behind the numbers that are stored, they are raised by this much instead: a day's worth.
LEAP = 86_400 * 1_000_000
#: Fences rise once per attempt. They stay small, because batches of events are numbered above them in one
#: integer (`flows/event_outbox.py`).
FENCES_PER_SECOND = 100
FENCE_LEAP = 86_400 * FENCES_PER_SECOND

RETIRED = "the database was restored from a backup; this native session may contain later turns"

_STEPS = (
    "restored_numbers",
    "restored_held_fences",
    "restored_claims",
    "restored_tasks",
    "restored_pointers",
    "restored_enrollments",
    "restored_counters_known",
    "restored_counters",
    "restored_audit",
)


class SqlRestores(WorkTransactions):
    async def mark_restored(self, now: float, source: str) -> None:
        parameters = {
            "floor": int(now * 1_000_000),
            "leap": LEAP,
            "fence_floor": int(now * FENCES_PER_SECOND),
            "fence_leap": FENCE_LEAP,
            "reason": RETIRED,
            "kind": AuditKind.DATABASE_RESTORED.value,
            "source": writable(source),
            "machine": platform.node(),
        }

        async def work(statements: Statements) -> None:
            for name in _STEPS:
                await statements.rows(name, parameters)

        await self._transact(work)

    async def other_connections(self) -> int:
        ((found,),) = await self._rows("other_connections", {})
        return int(found)
