"""Durable state, behind `ports.Store`: SQLite for one node, PostgreSQL for several. No decisions here."""
