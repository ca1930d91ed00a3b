"""Keys from the environment, and from a file of `NAME=value` lines for those who keep them in one.

The environment wins. A value may stand in quotes, `export` may stand before a name, and `#` begins a
line that says nothing. Nothing is expanded. An error names a line and never shows it.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from lastgood.errors import InvalidRequest
from lastgood.outside.secrets import Secrets

log = logging.getLogger(__name__)

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)")


def secrets_of(env_file: Path | None, environment: Mapping[str, str]) -> Secrets:
    values = read_env_file(env_file) if env_file else {}
    return Secrets({**values, **environment})


def read_env_file(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            text = stream.read().decode("utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"cannot read the env file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"the env file {path} is not UTF-8") from None
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        log.warning("other users can read the env file %s; run: chmod 600 %s", path, path)
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise InvalidRequest(f"{path}, line {number}: expected NAME=value")
        found[match[1]] = _unquoted(match[2])
    return found


def _unquoted(value: str) -> str:
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if quoted else value
