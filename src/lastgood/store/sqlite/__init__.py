"""The store for one node: a SQLite file with one writer that commits in groups."""

from lastgood.store.sqlite.store import AdministrationBeside, SqliteStore, open_sqlite

__all__ = ["AdministrationBeside", "SqliteStore", "open_sqlite"]
