"""Usage: turns, failures, time, tokens and cost as small plots, and by user, agent, runtime and model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

from lastgood.errors import InvalidRequest
from lastgood.flows.usage import UsageReport
from lastgood.model.tokens import Scope
from lastgood.model.usage import UsageCounts, UsageDimension, UsageRow, UsageStep
from lastgood.surfaces.console.console_flows import ConsoleFlows
from lastgood.surfaces.console.pages import Page
from lastgood.surfaces.console.text_format import compact, count, money, short, span
from lastgood.surfaces.http.asgi import Request
from lastgood.surfaces.http.principal import ANYBODY
from lastgood.surfaces.http.resource import timestamp

#: Length in hours, and of its steps. What people choose from.
RANGES = {
    "day": (24, UsageStep.HOUR),
    "week": (7 * 24, UsageStep.DAY),
    "month": (30 * 24, UsageStep.DAY),
    "year": (365 * 24, UsageStep.DAY),
}
_MOST_NAMES = 12
_ORDER = (UsageDimension.AGENT, UsageDimension.USER, UsageDimension.MODEL, UsageDimension.RUNTIME)
_HEIGHT = 60
NOTHING = "none"


class UsagePage:
    def __init__(self, flows: ConsoleFlows) -> None:
        self._flows = flows

    async def show(self, request: Request) -> Page:
        name = request.query.get("range", "week")
        if name not in RANGES:
            raise InvalidRequest(f"`range` must be one of {', '.join(RANGES)}", param="range")
        hours, step = RANGES[name]
        tenant, now = request.caller.tenant, self._flows.now()
        since = now - (hours - (1 if step is UsageStep.HOUR else 24)) * 3600
        only = {by: request.query[by.value] for by in UsageDimension if by.value in request.query}
        over_time = await self._flows.usage.report(tenant, since=since, step=step, only=only)
        names = await self._runtime_names(request)
        tables: dict[str, list[dict[str, Any]] | None] = {}
        for by in (one for one in _ORDER if one not in only):
            try:
                found = await self._flows.usage.report(
                    tenant, since=since, step=step, by=by, only=only, is_whole=True
                )
                tables[by.value] = _table(found.rows, by, names)
            except InvalidRequest:  # too many to read; the rest of the page must not suffer from that
                tables[by.value] = None
        data = {
            "range": name,
            "filters": [
                {"by": by.value, "name": name, "label": _label(by, name, names)} for by, name in only.items()
            ],
            "total": _counts(over_time.total),
            "plots": plots(over_time),
            "tables": tables,
        }
        filters = {by.value: name for by, name in only.items()}
        more = {
            "ranges": list(RANGES),
            "link": partial(_link, {"range": name, **filters}),
            "query": urlencode(filters),
        }
        return Page("usage.html", "Usage", data, more=more)

    async def _runtime_names(self, request: Request) -> dict[str, str]:
        caller = request.caller
        listed = await self._flows.work.runtimes.list(
            caller.tenant, caller.user, is_admin=caller.may(Scope.ADMIN)
        )
        return {one.id: one.name for one in listed}


def _link(chosen: Mapping[str, str], **changed: str | None) -> str:
    """The address of this page with other filters, or another range. None removes a filter."""
    kept = {name: value for name, value in {**chosen, **changed}.items() if value is not None}
    return f"/usage?{urlencode(kept)}"


def _label(by: UsageDimension, name: str, runtimes: Mapping[str, str]) -> str:
    match by:
        case UsageDimension.RUNTIME:
            return runtimes.get(name, short(name)) if name else "this server"
        case UsageDimension.USER if name == ANYBODY.name:
            return "a caller without a token"
        case _:
            return name or "unknown"


def _table(rows: Sequence[UsageRow], by: UsageDimension, runtimes: Mapping[str, str]) -> list[dict[str, Any]]:
    """The largest ones, and the others in one row."""
    most = sorted(rows, key=lambda row: (-row.counts.cost, -row.counts.attempts, row.name))
    listed: list[dict[str, Any]] = [
        {"name": row.name, "label": _label(by, row.name, runtimes), **_counts(row.counts)}
        for row in most[:_MOST_NAMES]
    ]
    rest = most[_MOST_NAMES:]
    if rest:
        total = sum((row.counts for row in rest), UsageCounts())
        listed.append({"name": None, "label": f"{len(rest)} others", **_counts(total)})
    return listed


def _counts(counts: UsageCounts) -> dict[str, Any]:
    mean = counts.seconds / counts.attempts if counts.attempts else None
    return {
        "turns": counts.turns,
        "failures": counts.failures,
        "attempts": counts.attempts,
        "failed_percent": round(100 * counts.failures / counts.attempts, 1) if counts.attempts else 0.0,
        "model_requests": counts.calls,
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "cost": counts.cost,
        "mean": span(mean) if mean is not None else NOTHING,
        "slowest": span(counts.slowest) if counts.attempts else NOTHING,
    }


def plots(report: UsageReport) -> list[dict[str, Any]]:
    """One bar for each step, those without usage included."""
    size = 1 if report.step is UsageStep.HOUR else 24
    by_hour = {row.hour: row.counts for row in report.rows}
    steps = [(hour, by_hour.get(hour, UsageCounts())) for hour in range(report.since, report.until, size)]
    total = report.total
    return [
        _plot("Turns", count(total.turns), steps, lambda one: one.turns, lambda one: one.failures),
        _plot("Failed", count(total.failures), steps, lambda _: 0, lambda one: one.failures),
        _plot("Mean time", _counts(total)["mean"], steps, _mean, worded=span),
        _plot(
            "Tokens",
            compact(total.input_tokens + total.output_tokens),
            steps,
            lambda one: one.input_tokens + one.output_tokens,
            worded=compact,
        ),
        _plot("Cost", money(total.cost), steps, lambda one: one.cost, worded=money),
    ]


def _mean(counts: UsageCounts) -> float:
    return counts.seconds / counts.attempts if counts.attempts else 0.0


def _plot(
    title: str,
    total: str,
    steps: Sequence[tuple[int, UsageCounts]],
    value: Any,
    failed: Any = lambda one: 0,
    worded: Any = count,
) -> dict[str, Any]:
    highest = max((value(one) + failed(one) for _, one in steps), default=0)
    most = highest or 1
    bars = []
    for place, (hour, counts) in enumerate(steps):
        good, bad = value(counts) / most * _HEIGHT, failed(counts) / most * _HEIGHT
        lost = f", {failed(counts):,} failed" if failed(counts) else ""
        bars.append(
            {
                "x": place,
                "good": round(good, 2),
                "bad": round(bad, 2),
                "label": f"{timestamp(hour * 3600)[:16].replace('T', ' ')}: {worded(value(counts))}{lost}",
            }
        )
    ends = (steps[0][0], steps[-1][0])
    by_hour = len(steps) < 2 or steps[1][0] - steps[0][0] == 1
    first, last = (time.strftime("%H:%M" if by_hour else "%d %b", time.gmtime(one * 3600)) for one in ends)
    plot = {"title": title, "total": total, "bars": bars, "steps": len(steps), "height": _HEIGHT}
    return plot | {"first": first, "last": last, "peak": worded(highest) if highest else ""}
