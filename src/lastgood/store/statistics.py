"""Statistics of a database, from the rows of its statements."""

from __future__ import annotations

from collections.abc import Sequence

from lastgood.model.stored_rows import DatabaseStatistics, TableSize
from lastgood.store.rows import Row


def to_statistics(
    rows: Sequence[Row], sizes: Sequence[Row], attempts: Sequence[Row], sessions: Row
) -> DatabaseStatistics:
    size_of = {str(name): int(size or 0) for name, size in sizes}
    tenants, oldest, newest = sessions
    return DatabaseStatistics(
        bytes=size_of.get("", 0),
        tables=tuple(TableSize(str(name), int(count), size_of.get(str(name), 0)) for name, count in rows),
        attempts={str(status): int(count) for status, count in attempts},
        tenants=int(tenants),
        oldest_session_at=oldest,
        last_change_at=newest,
    )
