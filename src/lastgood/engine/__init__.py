"""The agent loop, the models and the tools it calls."""
