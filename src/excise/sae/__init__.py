"""Sparse autoencoders of a model's hidden states: trained on the user's own text, kept as a folder, read from sae-lens."""
