"""What may stand in an agent file, as one table.

Validation, the JSON schema for editors and the documentation are made of it.
"""
