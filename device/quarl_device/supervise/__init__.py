"""`quarl-device supervise`: an agent that is started again when it ends, where no systemd does that."""
