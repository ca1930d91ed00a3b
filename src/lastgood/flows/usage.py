"""Reads usage in sums: over time, and by user, agent, runtime or model. Bounded, however much there is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lastgood.errors import InvalidRequest
from lastgood.flows.dependencies import Dependencies
from lastgood.model.ids import TenantId
from lastgood.model.usage import UsageCounts, UsageDimension, UsageQuery, UsageRow, UsageStep

#: So long a time is read at once, by the length of its steps.
MOST_DAYS = {UsageStep.HOUR: 31, UsageStep.DAY: 366}
MOST_ROWS = 5000
_HOURS = {UsageStep.HOUR: 1, UsageStep.DAY: 24}


@dataclass(frozen=True, slots=True)
class UsageReport:
    """From `since` to before `until`, in hours since the epoch. Steps without usage have no row."""

    since: int
    until: int
    step: UsageStep
    by: UsageDimension | None
    rows: tuple[UsageRow, ...]

    @property
    def total(self) -> UsageCounts:
        return sum((row.counts for row in self.rows), UsageCounts())


class UsageReader:
    def __init__(self, deps: Dependencies) -> None:
        self._store = deps.store
        self._clock = deps.clock

    async def report(
        self,
        tenant: TenantId,
        *,
        since: float | None = None,
        until: float | None = None,
        step: UsageStep = UsageStep.DAY,
        by: UsageDimension | None = None,
        only: Mapping[UsageDimension, str] | None = None,
        is_whole: bool = False,
    ) -> UsageReport:
        """`since` and `until` are seconds since the epoch, widened to whole steps; without them, the last
        seven days. `is_whole`: the range is one step, so that there is one row for each name."""
        size = _HOURS[step]
        last = _ceiled(self._clock.now() + 1 if until is None else until, size)
        first = last - 7 * 24 if since is None else _floored(since, size)
        if not 0 <= first < last:
            raise InvalidRequest("`since` must be before `until`", param="since")
        if last - first > MOST_DAYS[step] * 24:
            raise InvalidRequest(
                f"The range has {(last - first) / 24:.0f} days; the limit by {step} is {MOST_DAYS[step]}",
                param="since",
            )
        # Steps are counted from the epoch; one that is longer than all time holds everything.
        query = UsageQuery(first, last, last if is_whole else size, by, only or {})
        rows = await self._store.read_usage(tenant, query, limit=MOST_ROWS + 1)
        if len(rows) > MOST_ROWS:
            raise InvalidRequest(
                f"The report has more than {MOST_ROWS} rows; choose a shorter range, longer steps or a filter"
            )
        return UsageReport(first, last, step, by, rows)


def _floored(seconds: float, size: int) -> int:
    return math.floor(seconds / 3600 / size) * size


def _ceiled(seconds: float, size: int) -> int:
    return math.ceil(seconds / 3600 / size) * size
