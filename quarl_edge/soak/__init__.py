"""A soak: real processes on one machine, killed, cut off and starved by a seeded schedule, and the books kept of it."""
