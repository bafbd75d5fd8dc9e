"""What runs beside the learner on its own machine: actor processes and evaluations."""
