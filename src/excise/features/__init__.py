"""Features of a concept: found by a factorisation, described by their tokens, chosen by ratio and judge."""
