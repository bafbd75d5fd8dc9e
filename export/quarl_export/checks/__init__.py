"""What a policy file must pass before it is written; see `report` for the table of codes."""
