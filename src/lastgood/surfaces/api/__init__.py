"""The session API: sessions, runs, events and agents under `/api`."""
