"""`python -m lastgood` is the `lastgood` command."""

from __future__ import annotations

import sys

from lastgood.cli import main

sys.exit(main())
