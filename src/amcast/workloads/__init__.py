"""What clients ask for: destinations, payload sizes and pauses, all drawn from one seed.

A workload knows groups and clients, never a network: where things are is the business of `world/environments`.
"""
