"""White-Box atomic multicast: leaders propose timestamps, and majorities accept the proposals of all destinations.

`process.py` is the protocol; it owns the pending messages of `pending_multicast.py`.
"""
