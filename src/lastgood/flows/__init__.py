"""The verbs: read, decide, write, in that order. Flows orchestrate, core decides, the store persists."""
