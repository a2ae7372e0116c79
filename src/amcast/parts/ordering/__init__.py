"""Order of messages: clocks, queues by final timestamp, histories, overlays, sets of delivered messages."""
