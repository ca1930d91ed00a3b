"""What an exception under a planted defect means: the defect was noticed, or it no longer fits the code."""

from __future__ import annotations

import traceback
from pathlib import Path

_FOLDER = Path(__file__).parent


class BrokenDefect(AssertionError):
    """The planted defect raised by itself, so whatever runs under it fails, and nothing is proved."""


def objection_of(error: BaseException) -> str:
    """BrokenDefect: the error comes out of the code of the defect."""
    for last in traceback.extract_tb(error.__traceback__)[-1:]:
        file = Path(last.filename)
        is_of_defect = file.parent == _FOLDER and file.stem.endswith("defects")
        if is_of_defect and isinstance(error, AttributeError | NameError | TypeError):
            raise BrokenDefect(f"{file.name}:{last.lineno}: {error!r}") from error
    return repr(error)
