"""Reads the version of a CLI, and says whether its kind was tested with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from lastgood.worker.runtimes.cli_process import output_of

_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?[\w.+-]*")


async def version_of(
    command: Sequence[str], environment: Mapping[str, str], tested: frozenset[str] | None
) -> str | None:
    """Returns "1.2.3", or "1.2.3 (untested)"; None: the CLI is not installed or does not start."""
    line = await output_of([*command, "--version"], environment)
    if line is None:
        return None
    found = _VERSION.search(line)
    version = found[0] if found else line[:100] or "unknown"
    return version if tested is None or version in tested else f"{version} (untested)"
