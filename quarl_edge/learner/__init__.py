"""The learner: from experience to signed policy pushes."""
