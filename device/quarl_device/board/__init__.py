"""What a board can tell of itself: memory, heat, throttling, energy. What it cannot tell is `None`."""
