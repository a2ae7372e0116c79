"""Pieces that several papers share. Each is pure, knows no protocol, and has tests of its own.

A part speaks down through the verbs of the process that owns it (`owner.send_all`, `owner.persist`, ...) and answers
up by return value. There are no callbacks: whoever reads a protocol's `on_receive` sees everything that can happen.
"""
