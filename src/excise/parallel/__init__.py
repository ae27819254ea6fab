"""Several processes on one run: which of them this is, what they add up and agree on, and weights spread over them."""
