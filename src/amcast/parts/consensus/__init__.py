"""Consensus in a group: ballots and quorums, the replicated log, Paxos and Ring Paxos."""
