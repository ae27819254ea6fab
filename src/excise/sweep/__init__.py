"""Many runs of one recipe with other settings, and which of them are best."""
