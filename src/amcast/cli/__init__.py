"""The command `amcast`: one module per set of commands, all with the same conventions.

Exit codes: 0 holds, 1 violated, 2 unknown or cannot tell, 64 wrong use, 70 internal error.
"""

from amcast.cli.main import main

__all__ = ["main"]
