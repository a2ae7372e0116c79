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
    Bug(
        "membership-keeps-as-delivered-what-it-discards",
        "parts.membership.reconfigurable",
        "        for other in later:\n            if type(other) is Deliver:\n                discarded +=",
        "        for other in ():\n            if type(other) is Deliver:\n                discarded +=",
        "primcast",
    ),
    Bug(
        "membership-replaces-records-of-other-instances",
        "parts.membership.reconfigurable",
        "is_only = len(self._instances) == 1 and not instance.has_skipped_barrier",
        "is_only = not instance.has_skipped_barrier",
        "primcast",
    ),
    Bug(
        "membership-takes-an-older-configuration",
        "parts.membership.reconfigurable",
        "        if start.configuration <= self.configuration:\n            return\n        topology = decode",
        "        topology = decode",
        "primcast",
    ),
)
