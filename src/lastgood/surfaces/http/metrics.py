"""Metrics in the Prometheus text format. Contains no session ids and no content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from lastgood.surfaces.http.app import AnsweredRequest

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(slots=True)
class Metrics:
    """`gauges` and `counters` are read on each scrape."""

    gauges: dict[str, tuple[str, Callable[[], float]]] = field(default_factory=dict)
    counters: dict[str, tuple[str, Callable[[], float]]] = field(default_factory=dict)
    turns: Counter[str] = field(default_factory=Counter)  # by how they ended
    _requests: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    _seconds: Counter[tuple[str, float]] = field(default_factory=Counter)
    _sums: dict[str, float] = field(default_factory=dict)

    def request(self, seen: AnsweredRequest) -> None:
        path = seen.route.path if seen.route else "none"
        self._requests[seen.request.method if seen.route else "none", path, seen.status] += 1
        self._sums[path] = self._sums.get(path, 0.0) + seen.seconds
        for bucket in _BUCKETS:
            if seen.seconds <= bucket:
                self._seconds[path, bucket] += 1

    def text(self) -> str:
        lines = [
            *_help("lastgood_http_requests_total", "counter", "HTTP requests by method, route and status")
        ]
        for (method, path, status), count in sorted(self._requests.items()):
            labels = f'method="{method}",route="{path}",status="{status}"'
            lines.append(f"lastgood_http_requests_total{{{labels}}} {count}")
        lines += self._histogram()
        lines += _help("lastgood_turns_total", "counter", "Attempts by outcome")
        lines += [
            f'lastgood_turns_total{{outcome="{outcome}"}} {count}'
            for outcome, count in sorted(self.turns.items())
        ]
        for kind, asked in (("gauge", self.gauges), ("counter", self.counters)):
            for name, (about, read) in asked.items():
                lines += [*_help(name, kind, about), f"{name} {read():g}"]
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[str]:
        name = "lastgood_http_request_seconds"
        lines = list(_help(name, "histogram", "Request duration in seconds; streams count until they end"))
        totals: Counter[str] = Counter()
        for (_, path, _), count in self._requests.items():
            totals[path] += count
        for path, total in sorted(totals.items()):
            for bucket in _BUCKETS:
                lines.append(f'{name}_bucket{{route="{path}",le="{bucket:g}"}} {self._seconds[path, bucket]}')
            lines.append(f'{name}_bucket{{route="{path}",le="+Inf"}} {total}')
            lines.append(f'{name}_sum{{route="{path}"}} {self._sums[path]:g}')
            lines.append(f'{name}_count{{route="{path}"}} {total}')
        return lines


def _help(name: str, kind: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} {kind}"
