"""A page on this machine to try a run on: the models before and after and the twin, side by side."""
