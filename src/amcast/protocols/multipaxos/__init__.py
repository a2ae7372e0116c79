"""MultiPaxos: one group orders every message."""
