"""An agent onto a board over SSH: what is asked for, what the board is, what is sent, and what came of it."""
