"""Learner, runs and fleet commands of quarl-edge."""

__version__ = "0.1.0"
