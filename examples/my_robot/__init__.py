"""A robot of one's own, as a package that is installed on the board and where the learner is."""
