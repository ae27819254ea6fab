"""What a GGUF file says of a model: its architecture's numbers and tensors, and its vocabulary."""
