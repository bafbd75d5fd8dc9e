"""The actor: steps environments with the newest policy and streams what it saw to the learner.

The pure parts know neither link, clock nor thread: `session` (what may be sent, whether the loop may step), `outbox`,
`recorder`, `exploration`, `episodes`. `single` and `vector` are the two hot loops, `inbox` makes pushes into
policies, and `agent` ties them to a link.
"""
