"""Runtime kinds: each drives one agent CLI, or all that speak one protocol."""
