"""The spool: blocks on the device's disk until the learner has them safe, over kills, power cuts and restarts."""
