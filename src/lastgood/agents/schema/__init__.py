"""The schema of agent files, as one table.

Validation, the JSON schema for editors and the documentation are generated from it.
"""
