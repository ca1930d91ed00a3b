"""Planted defects of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

from lastgood.core.secret_shapes import holds_key
from lastgood.worker import redaction as worker_redaction
from lastgood.worker import snapshots as worker_snapshots
from lastgood.worker.redaction import Redaction
from tests.faults.defects import DEFECTS, defect

_BEFORE = len(DEFECTS)


@defect("snapshots are not searched for API keys")
def _() -> Iterator[None]:
    with patch.object(worker_redaction, "holds_key", lambda data: False):
        yield


@defect("snapshots are not searched for known secrets")
def _() -> Iterator[None]:
    with patch.object(Redaction, "is_in", lambda self, data: holds_key(data)):
        yield


@defect("files that are named like secrets are uploaded")
def _() -> Iterator[None]:
    with patch.object(worker_snapshots, "holds_secrets", lambda path: False):
        yield


#: The simulation has no machines with files.
OF_WORKERS = frozenset(one.name for one in DEFECTS[_BEFORE:])
