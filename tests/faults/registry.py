"""Every probe and every planted defect, whichever module registers it: none is left out of a list."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tests.faults.defects import DEFECTS, Defect
from tests.faults.probes import PROBES, Probe

#: Its defects are of servers in processes of their own, and have a list of their own.
_APART = "tool_defects"

for _path in sorted(Path(__file__).parent.glob("*_probes.py")) + sorted(
    Path(__file__).parent.glob("*_defects.py")
):
    if not _path.stem.startswith("test_") and _path.stem != _APART:
        import_module(f"tests.faults.{_path.stem}")

ALL_PROBES: tuple[Probe, ...] = tuple(PROBES)
ALL_DEFECTS: tuple[Defect, ...] = tuple(DEFECTS)


def caught_by_probe(one: Defect) -> str | None:
    """Probes that are named like the defect come first: one of them probably objects, and the others need not
    run. All of them run before this returns None."""
    words, subject = _words(one.name), _subject(one.plant)

    def likeness(probe: Probe) -> tuple[int, bool]:
        return len(words & _words(probe.name)), _subject(probe.story).endswith(subject)

    with one.plant():
        for probe in sorted(ALL_PROBES, key=likeness, reverse=True):
            if (objection := probe.objects()) is not None:
                return f"{probe.name}: {objection}"
    return None


def _words(name: str) -> set[str]:
    """Their beginnings: a probe may say in the plural what its defect says in the singular."""
    return {word[:5] for word in re.findall("[a-z]+", name.lower()) if len(word) > 3}


def _subject(registered: Callable[..., object]) -> str:
    """`work_` of what `work_probes.py` or `work_defects.py` registers."""
    return registered.__module__.rpartition(".")[2].removesuffix("probes").removesuffix("defects")
