"""HTTP: the app, its connections, access control, parsing, error responses, rate limits and metrics."""
