"""The one agent loop, the models it asks and the tools it calls."""
