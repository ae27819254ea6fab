"""Matrix factorisations: arrays in, factors out. Nothing here knows of models."""
