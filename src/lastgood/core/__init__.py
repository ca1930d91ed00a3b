"""The decisions: pure functions over plain values. No I/O, no clock, no async, no logging."""
