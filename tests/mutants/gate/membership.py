"""Bugs of configurations and of the members that forget in which they took part."""

from typing import Final

from tests.mutants.gate.bug import Bug

DOUBT: Final = "parts.membership.memory_doubt"

BUGS: Final = (
    Bug(
        "membership-without-doubt",
        DOUBT,
        "        return instance.has_delivered(self.marker)\n",
        "        return True\n",
        "whitebox",
    ),
    Bug(
        "primcast-membership-without-doubt",
        DOUBT,
        "        return instance.has_delivered(self.marker)\n",
        "        return True\n",
        "primcast",
    ),
)
