"""Flow that can be seen: how old the policies are that act, what each side waits for, and where the numbers go."""
