"""MultiPaxos as atomic multicast: one group orders every message. The non-genuine reference."""
