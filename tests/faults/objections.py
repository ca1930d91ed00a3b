"""What an exception under a planted defect means: the defect was noticed, or it no longer fits the code."""

from __future__ import annotations

import traceback
from pathlib import Path

_FOLDER = Path(__file__).parent
#: How a function of a defect is named in the error of a call with other arguments than it takes.
_OF_DEFECTS = "_.<locals>."


class BrokenDefect(AssertionError):
    """The planted defect raised by itself, so whatever runs under it fails, and nothing is proved."""


def objection_of(error: BaseException) -> str:
    """BrokenDefect: the error comes out of the code of the defect, or that could not even be called."""
    if isinstance(error, TypeError) and str(error).startswith(_OF_DEFECTS):
        raise BrokenDefect(repr(error)) from error
    for last in traceback.extract_tb(error.__traceback__)[-1:]:
        file = Path(last.filename)
        is_of_defect = file.parent == _FOLDER and file.stem.endswith("defects")
        if is_of_defect and isinstance(error, AttributeError | NameError | TypeError):
            raise BrokenDefect(f"{file.name}:{last.lineno}: {error!r}") from error
    return repr(error)
