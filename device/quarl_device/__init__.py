"""What runs on a board, and what both ends must agree on. Never imports TensorFlow."""

__version__ = "0.1.0"
