"""Building blocks that several protocols share. Each is pure, knows no protocol, and has tests of its own.

A part acts through the verbs of the process that owns it (`owner.send_all`, `owner.persist`, ...) and reports by return
value. There are no callbacks: a protocol's `on_receive` shows everything that can happen.

Packages import one way: consensus and ordering; then broadcast, groups and client; then membership; then node.
"""
