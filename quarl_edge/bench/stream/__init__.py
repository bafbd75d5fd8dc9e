"""`quarl-edge bench stream`: synthetic senders into the real ingest, with every stored transition checked."""
