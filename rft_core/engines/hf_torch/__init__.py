"""The half of the `hf` engine that computes. It imports torch and is loaded when an engine is built."""
