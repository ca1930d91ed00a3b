"""Usage, on either database: rows of what is counted, and their sums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lastgood.model.attempts import AttemptStatus, Step, StepKind
from lastgood.model.ids import TenantId
from lastgood.model.sessions import MOST_COST, MOST_TOKENS, Usage
from lastgood.model.usage import AttemptUse, UsageCounts, UsageDimension, UsageQuery, UsageRow
from lastgood.store.rows import writable
from lastgood.store.task_rows import as_text
from lastgood.store.work_access import Statements, WorkTransactions

#: In bytes. PostgreSQL rejects rows of an index above 2,704, and the one of sums has four names.
_LONGEST_NAME = 500
_FAILURES = (AttemptStatus.FAILED, AttemptStatus.INTERRUPTED)


def uses_of_steps(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """The responses among the steps of a journal. Time is counted at the end of the attempt."""
    return [
        _use(step.model, calls=1, usage=step.usage, seconds=0.0)
        for step in steps
        if step.kind is StepKind.MODEL
    ]


def uses_of_end(status: AttemptStatus, use: AttemptUse) -> list[dict[str, Any]]:
    """The attempt itself, with its last answer, and requests that were not answered."""
    ended = _use(
        use.model,
        calls=use.calls,
        usage=use.answer or Usage(),
        seconds=use.seconds,
        attempts=1,
        turns=int(status is AttemptStatus.COMMITTED),
        failures=int(status in _FAILURES),
    )
    return [ended, *uses_of_wait(use)]


def uses_of_wait(use: AttemptUse) -> list[dict[str, Any]]:
    """Requests that were not answered before the attempt began to wait for a person."""
    return [
        _use(model, calls=calls, usage=Usage(), seconds=0.0)
        for model, calls in use.unanswered.items()
        if calls > 0
    ]


def _use(
    model: str,
    *,
    calls: int,
    usage: Usage,
    seconds: float | None,
    attempts: int = 0,
    turns: int = 0,
    failures: int = 0,
) -> dict[str, Any]:
    return {
        "use_model": writable(model),
        "use_attempts": attempts,
        "use_turns": turns,
        "use_failures": failures,
        "use_calls": calls,
        "use_inputs": min(usage.input_tokens, MOST_TOKENS),
        "use_outputs": min(usage.output_tokens, MOST_TOKENS),
        "use_cost": min(usage.cost, MOST_COST),
        "use_seconds": seconds,
    }


_PLURALS = {"use_model": "use_models", "use_cost": "use_costs"}


def as_arrays(uses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of count_held."""
    names = _use("", calls=0, usage=Usage(), seconds=None)
    return {_PLURALS.get(name, name): [one[name] for one in uses] for name in names}


class SqlUsage(WorkTransactions):
    async def record_use(
        self, tenant: TenantId, user: str, agent_key: str, status: AttemptStatus, use: AttemptUse
    ) -> None:
        whose = {"tenant": tenant, "user": writable(user), "agent_key": agent_key}

        async def work(statements: Statements) -> None:
            for one in uses_of_end(status, use):
                await statements.rows("record_use", whose | one | {"use_seconds": one["use_seconds"] or 0.0})

        await self._transact(work, durable=False)

    async def merge_usage(self, *, limit: int) -> int:
        async def work(statements: Statements) -> int:
            if not await statements.rows("lock_usage", {}):
                return 0
            rows = await statements.rows("recent_uses", {"limit": limit})
            sums: dict[tuple[Any, ...], UsageCounts] = {}
            for row in rows:
                tenant, hour, *names = row[1:7]
                key = (tenant, hour, *map(_short, names))
                sums[key] = sums.get(key, UsageCounts()) + _counts(row[7:])
            for key, counts in sums.items():
                await statements.rows("add_usage", _of_sum(key, counts))
            if rows:
                # By their numbers: rows with lower ones may have been committed since these were read.
                numbers = as_text([row[0] for row in rows])
                await statements.rows("drop_uses", {"numbers": numbers})
            return len(rows)

        return await self._transact(work, durable=False)

    async def read_usage(self, tenant: TenantId, query: UsageQuery, *, limit: int) -> tuple[UsageRow, ...]:
        wanted = {
            "tenant": tenant,
            "since": query.since,
            "until": query.until,
            "step": query.step,
            "by": query.by.value if query.by else "",
            "limit": limit,
            **{one.value: query.only.get(one) for one in UsageDimension},
        }
        rows = await self._rows_aside("read_usage", wanted)
        return tuple(UsageRow(row[0], row[1], _counts(row[2:])) for row in rows)


def _short(name: str) -> str:
    """A name as sums have it. Different names stay different."""
    encoded = name.encode()
    if len(encoded) <= _LONGEST_NAME:
        return name
    return f"{name[:100]}…{hashlib.sha256(encoded).hexdigest()[:16]}"


def _counts(values: Sequence[Any]) -> UsageCounts:
    whole, real = [int(one) for one in values[:6]], [float(one) for one in values[6:]]
    return UsageCounts(*whole, *real)


def _of_sum(key: tuple[Any, ...], counts: UsageCounts) -> dict[str, Any]:
    tenant, hour, user, agent_key, runtime, model = key
    whose = {"tenant": tenant, "hour": hour, "user": user, "agent_key": agent_key}
    return {
        **whose,
        "runtime": runtime,
        "model": model,
        "attempts": counts.attempts,
        "turns": counts.turns,
        "failures": counts.failures,
        "calls": counts.calls,
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "cost": counts.cost,
        "seconds": counts.seconds,
        "slowest": counts.slowest,
    }
