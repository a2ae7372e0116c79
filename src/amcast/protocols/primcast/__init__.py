"""PrimCast and PrimCast-HC: primaries propose timestamps, and every member acknowledges to every destination.

`process.py` is the protocol; it owns the group's log (`log.py`), the progress of messages and groups (`progress.py`)
and the primary's delivery notices (`delivery_notices.py`).
"""
