"""`quarl-device install`: puts an agent onto the board that it runs on, from a bundle.

It runs from the wheel in the bundle, so it needs the standard library alone. A bundle is read and checked (`bundle`),
the board looked at (`facts`, `checks`), what is wanted compared with what is there (`wanted`, `found`, `plan`), and the
steps done through a `host`, which is the board or a fake of it. What changes while an agent may run is one `switch`: it
has happened, or it is undone.
"""
