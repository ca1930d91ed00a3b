"""The verbs: read, decide, write, in that order. Flows arrange; core decides; the store remembers."""
