"""multipaxos."""
