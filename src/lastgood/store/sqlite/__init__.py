"""The store for one node: a SQLite file with one writer that commits in groups."""

from lastgood.store.sqlite.store import SqliteStore, TokensBeside, open_sqlite

__all__ = ["SqliteStore", "TokensBeside", "open_sqlite"]
