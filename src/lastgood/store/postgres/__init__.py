"""The store for several nodes: PostgreSQL, one statement per transaction where it fits."""

from lastgood.store.postgres.store import PostgresStore, open_postgres

__all__ = ["PostgresStore", "open_postgres"]
