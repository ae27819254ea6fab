"""The studies behind docs/results.md: each a command that writes a JSON file and prints its table."""
