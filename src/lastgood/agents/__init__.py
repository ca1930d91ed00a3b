"""Agents: where their definitions come from, and which are served."""
