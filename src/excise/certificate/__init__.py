"""A signed account of a run: what was asked, what was done, what was measured, and what was not."""
