"""Deletion requests: from a name, some questions or some texts to a model that no longer knows, and a ledger of such requests."""
