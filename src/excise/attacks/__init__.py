"""What is tried to bring removed knowledge back."""

ATTACKS: dict[str, str] = {}
