"""The round-based protocols A_ng and A_dt: every group sends the others the messages of a round, maybe none.

`process.py` has what both share; `a_ng.py` and `a_dt.py` are the protocols.
"""
