"""Groups of replicas: groups with a leader, groups that agree on timestamps, state machine replication."""
