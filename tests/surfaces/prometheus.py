"""Prometheus' text format, read strictly: what a scraper would only complain about is an error here."""

import re
from dataclasses import dataclass, field

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"')
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")

Labels = frozenset[tuple[str, str]]


@dataclass
class Family:
    name: str
    kind: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


def families(text: str) -> dict[str, Family]:
    assert text.endswith("\n")
    assert "\r" not in text
    found: dict[str, Family] = {}
    helped = ""
    family: Family | None = None
    for line in text.removesuffix("\n").split("\n"):
        if match := re.fullmatch(rf"# HELP ({_NAME}) (\S.*)", line):
            helped = match[1]
        elif match := re.fullmatch(rf"# TYPE ({_NAME}) (counter|gauge|histogram)", line):
            assert match[1] == helped, "the type follows the help"
            assert match[1] not in found, "each family stands together"
            family = found[match[1]] = Family(match[1], match[2])
        else:
            assert family is not None
            _sample(family, line)
    for one in found.values():
        if one.kind == "histogram":
            _check_histogram(one)
    return found


def _sample(family: Family, line: str) -> None:
    match = _SAMPLE.fullmatch(line)
    assert match is not None, line
    name, labels, value = match[1], match[2] or "", float(match[3])
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert name in {family.name + suffix for suffix in suffixes}, line
    pairs = _LABEL.findall(labels)
    assert ",".join(f'{key}="{value}"' for key, value in pairs) == labels, line
    assert len({key for key, _ in pairs}) == len(pairs), line
    key = name, frozenset(pairs)
    assert key not in family.samples, f"twice: {line}"
    if family.kind == "counter":
        assert name.endswith("_total")
        assert value >= 0
    family.samples[key] = value


def _check_histogram(family: Family) -> None:
    series = {frozenset(pair for pair in labels if pair[0] != "le") for _, labels in family.samples}
    for labels in series:
        buckets = {
            dict(found)["le"]: value
            for (name, found), value in family.samples.items()
            if name.endswith("_bucket") and labels <= found
        }
        counts = [buckets[bound] for bound in sorted(buckets, key=float)]
        assert counts == sorted(counts), "buckets are cumulative"
        assert buckets["+Inf"] == family.samples[f"{family.name}_count", labels]
        assert (f"{family.name}_sum", labels) in family.samples
