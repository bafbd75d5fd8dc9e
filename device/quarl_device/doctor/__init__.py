"""`quarl-device doctor`: what is wrong with this board, and the command that mends it.

Readings touch the board (`host_readings`, `runtime_readings`, `link_readings`); checks are pure functions of what was
read (`host_checks`, `runtime_checks`, `link_checks`); `examine` is the order of things.
"""
