"""The OpenAI-compatible API: agents as models under `/v1`."""
