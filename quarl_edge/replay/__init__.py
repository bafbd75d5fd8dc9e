"""What becomes of experience: n-step transitions, the ring that is sampled, the limiter, the journal."""
