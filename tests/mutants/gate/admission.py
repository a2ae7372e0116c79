"""Bugs of admission and of client ids: folders that were emptied, rolled back or damaged take part as if whole."""

from typing import Final

from tests.mutants.gate.bug import Bug

ADMISSION: Final = "parts.node.admission"
CLIENT_IDS: Final = "storage.client_ids"
FOLDER: Final = "storage.folder"
IS_OLDER: Final = (
    "    is_older = stated.incarnation <= known.incarnation or has_fewer or _lacks_start(known, request.starts)\n"
)
RESTART: Final = (
    "        self.ending = Restart(incarnation, max([folder.records, 0, *(known.records for known in seen)]))\n"
)

BUGS: Final = (
    Bug(
        "admission-takes-another-folder",
        ADMISSION,
        '        return "replaced" if is_replacement else "other"\n',
        '        return "replaced"\n',
        "primcast",
    ),
    Bug(
        "admission-remembers-no-folder",
        ADMISSION,
        '        elif verdict not in ("other", "ahead"):\n            self._remember(stated)\n',
        "",
        "primcast",
    ),
    Bug(
        "admission-asks-no-witness",
        ADMISSION,
        "        if not missing or sum(reply.is_admitted for reply in replies) >= needed:\n",
        "        if True:\n",
        "primcast",
    ),
    Bug("admission-takes-an-older-copy", ADMISSION, IS_OLDER, "    is_older = False\n", "primcast"),
    Bug("multipaxos-admission-takes-an-older-copy", ADMISSION, IS_OLDER, "    is_older = False\n", "multipaxos"),
    Bug(
        "admission-compares-no-incarnations",
        ADMISSION,
        IS_OLDER,
        "    is_older = has_fewer or _lacks_start(known, request.starts)\n",
        "primcast",
    ),
    Bug(
        "admission-compares-no-records",
        ADMISSION,
        "    has_fewer = 0 <= stated.records < known.records\n",
        "    has_fewer = False\n",
        "primcast",
    ),
    Bug(
        "admission-compares-no-starts",
        ADMISSION,
        "    return reaches_back and all(start != known.start for _, start in starts)\n",
        "    return False\n",
        "primcast",
    ),
    Bug(
        "admission-does-not-wait-for-a-majority",
        ADMISSION,
        '        if known >= needed:\n            return ""\n',
        '        if True:\n            return ""\n',
        "primcast",
    ),
    Bug(
        "admission-uses-doubtful-records",
        ADMISSION,
        "            self._decide_doubtful(folder)\n            return False\n",
        "            return True\n",
        "primcast",
    ),
    Bug(
        "admission-of-doubtful-repeats-an-incarnation",
        ADMISSION,
        RESTART,
        RESTART.replace("Restart(incarnation,", "Restart(0,"),
        "primcast",
    ),
    Bug(
        "client-ids-allocated-before-they-are-reserved",
        CLIENT_IDS,
        "            self._write({**self._reserved, first: place + AHEAD})\n",
        "            self._reserved = {**self._reserved, first: place + AHEAD}\n",
        "primcast",
    ),
    Bug(
        "client-ids-allocated-although-reservations-are-lost",
        CLIENT_IDS,
        "        if self._is_lost:\n            raise",
        "        if False:\n            raise",
        "primcast",
    ),
    Bug(
        "folder-begins-an-incarnation-again",
        FOLDER,
        "        incarnation = identity.incarnation + 1\n",
        "        incarnation = max(identity.incarnation, 0)\n",
        "primcast",
    ),
)
