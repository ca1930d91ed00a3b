"""The console in a real browser; `make test-browser` installs and runs it."""
