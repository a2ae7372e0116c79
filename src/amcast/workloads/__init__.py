"""Workloads: the destinations, payload sizes and pauses of clients' messages, all drawn from one seed.

A workload knows groups and clients, never a network: locations are the matter of `simulation/inputs/environments`.
"""
