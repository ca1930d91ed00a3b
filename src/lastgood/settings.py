"""Settings, read once. Each has a `LASTGOOD_…` variable; the first two are flags, too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    #: Where Lastgood keeps its files (LASTGOOD_DATA_DIR).
    data_dir: Path
    #: `sqlite:///PATH` from the root, or `postgresql://…` (LASTGOOD_DATABASE); default: in the data dir.
    database: str
    #: The scripted model appends every prompt it sees to this file (LASTGOOD_PROMPT_LOG).
    prompt_log: Path | None = None


def read_settings(
    environment: Mapping[str, str] | None = None, *, data_dir: str | None = None, database: str | None = None
) -> Settings:
    """A flag wins over a variable, a variable over the default."""
    env = os.environ if environment is None else environment
    folder = Path(data_dir or env.get("LASTGOOD_DATA_DIR") or _default_folder(env)).expanduser().absolute()
    log = env.get("LASTGOOD_PROMPT_LOG")
    return Settings(
        data_dir=folder,
        database=database or env.get("LASTGOOD_DATABASE") or f"sqlite:///{folder / 'lastgood.db'}",
        prompt_log=Path(log) if log else None,
    )


def _default_folder(env: Mapping[str, str]) -> str:
    base = env.get("XDG_DATA_HOME") or "~/.local/share"
    return f"{base}/lastgood"
