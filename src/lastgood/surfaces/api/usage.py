"""Handlers for usage: tokens, cost, turns, failures and time, in sums."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lastgood.errors import InvalidRequest
from lastgood.flows.usage import MOST_DAYS, UsageReader, UsageReport
from lastgood.model.usage import UsageCounts, UsageDimension, UsageRow, UsageStep
from lastgood.surfaces.http.asgi import Request, Response, json_reply
from lastgood.surfaces.http.json_schema import COUNT, TEXT, object_of, or_null
from lastgood.surfaces.http.resource import NUMBER, list_of, timestamp

_COUNTS = {
    "turns": COUNT,
    "failures": COUNT,
    "attempts": COUNT,
    "model_requests": COUNT,
    "input_tokens": COUNT,
    "output_tokens": COUNT,
    "cost": NUMBER,
    "mean_seconds": or_null(NUMBER),
    "slowest_seconds": NUMBER,
}
_NAMES = {one.value: TEXT for one in UsageDimension}
_DATE_TIME = {"type": "string", "format": "date-time"}
REPORT = object_of(
    {
        "since": TEXT,
        "until": TEXT,
        "step": {"enum": [*UsageStep]},
        "by": or_null({"enum": [*UsageDimension]}),
        "total": object_of(_COUNTS),
        "rows": list_of(object_of({"start": TEXT, **_COUNTS}, _NAMES)),
    }
)
_LONGEST = ", ".join(f"{days} days by {step}" for step, days in MOST_DAYS.items())
QUERY: dict[str, tuple[str, dict[str, Any]]] = {
    "since": (f"Start of the range, by default seven days before its end; at most {_LONGEST}", _DATE_TIME),
    "until": ("End of the range, by default now", _DATE_TIME),
    "step": ("Time span of one row, by default a day (UTC)", {"enum": [*UsageStep]}),
    "by": ("Group rows by this dimension", {"enum": [*UsageDimension]}),
    **{one.value: (f"Filter by {one.value}", {"type": "string"}) for one in UsageDimension},
}


class UsageHandlers:
    def __init__(self, reader: UsageReader) -> None:
        self._reader = reader

    async def usage(self, request: Request) -> Response:
        query = request.query
        step, by = query.get("step", UsageStep.DAY.value), query.get("by")
        if step not in {*UsageStep}:
            raise InvalidRequest(f"`step` must be one of {', '.join(UsageStep)}", param="step")
        if by is not None and by not in {*UsageDimension}:
            raise InvalidRequest(f"`by` must be one of {', '.join(UsageDimension)}", param="by")
        report = await self._reader.report(
            request.caller.tenant,
            since=_moment(query.get("since"), "since"),
            until=_moment(query.get("until"), "until"),
            step=UsageStep(step),
            by=UsageDimension(by) if by is not None else None,
            only={one: query[one.value] for one in UsageDimension if one.value in query},
        )
        return json_reply(report_json(report))


def _moment(text: str | None, name: str) -> float | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidRequest(f"`{name}` must be a time like 2026-11-18T09:00:00Z", param=name) from None


def report_json(report: UsageReport) -> dict[str, Any]:
    return {
        "since": timestamp(report.since * 3600),
        "until": timestamp(report.until * 3600),
        "step": report.step.value,
        "by": report.by.value if report.by else None,
        "total": _counts(report.total),
        "rows": [_row(report, row) for row in report.rows],
    }


def _row(report: UsageReport, row: UsageRow) -> dict[str, Any]:
    named = {report.by.value: row.name} if report.by else {}
    return {"start": timestamp(row.hour * 3600), **named, **_counts(row.counts)}


def _counts(counts: UsageCounts) -> dict[str, Any]:
    return {
        "turns": counts.turns,
        "failures": counts.failures,
        "attempts": counts.attempts,
        "model_requests": counts.calls,
        "input_tokens": counts.input_tokens,
        "output_tokens": counts.output_tokens,
        "cost": counts.cost,
        "mean_seconds": counts.seconds / counts.attempts if counts.attempts else None,
        "slowest_seconds": counts.slowest,
    }
