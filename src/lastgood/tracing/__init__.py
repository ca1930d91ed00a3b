"""What a turn did, as spans for an OpenTelemetry collector. Off unless it is enabled."""
