"""What the notes of processes mean, in a few words: one table for every view that shows them.

A name that several protocols use has one meaning. A test holds that every note that the sources write is here.
"""

from typing import Final

NOTE_TEXTS: Final = {
    "absent": "the client no longer waits for a destination group that does not answer",
    "admitted": "a member that lost its memory, or started anew, may vote again",
    "adopted": "the member took over the state of a new leader",
    "again": "a message of the own group was ordered once more",
    "asked": "a process asked for a message or a timestamp that it missed",
    "asked anew": "a member that lost its memory asked again to be admitted",
    "blocked": "delivery waited for a message that precedes it and has not come",
    "bump": "a clock was raised without a message, so that others could deliver",
    "campaign": "a member stood for election as leader",
    "caught-up": "a delivery came by state transfer, not by the protocol",
    "checkpointed": "the log was replaced by a checkpoint",
    "confirmed": "the tree confirmed the message down to this group",
    "convoy": "a message to one group waited for messages to several groups",
    "covered": "a notification was not sent, because an earlier one covers it",
    "doubled": "a second copy of a message was dropped",
    "early": "a timestamp came before its message",
    "early-proposal": "a leader sent its timestamp while its disk was still writing it",
    "epoch": "a new leader took over",
    "extended": "a member took entries of the leader's log that it missed",
    "fast": "the guessed timestamp was right: two delays were saved",
    "flushed": "delivered messages were dropped from the history",
    "forgot": "a member started without its memory",
    "forwarded": "a follower passed the request on to its leader",
    "handed": "a batch was sent again to somebody who asked for it",
    "helped": "this member helped one without memory to be admitted",
    "hurried": "an empty round was proposed, because another group was ahead",
    "installed": "a snapshot replaced deliveries that this member had missed",
    "led": "this member became the leader",
    "left": "a member said that it stops",
    "locked": "a message waited until the one before it had gone round the ring",
    "mended": "a wrong guess was corrected by the agreed timestamp",
    "nack": "a candidate or leader was refused by a later ballot",
    "notified": "another group was told about a message that does not concern it",
    "overflow": "a limit of memory was reached; the rest was dropped and is asked for again",
    "overtaken": "a snapshot was newer than the configuration that it came in",
    "overtook": "a message to one group was delivered before messages to several groups",
    "passed": "a group handed a message down the tree that it does not deliver",
    "removed": "a group that does not answer was left out of rounds",
    "repeated": "a message that was ordered already was dropped",
    "remembered": "a member that lost its memory was told by its group's order that nothing of it matters any more",
    "replayed": "a restarted process read its log",
    "reproposed": "a new leader proposed a message of the one before again",
    "resent": "a new leader sent unacknowledged messages again",
    "restarted": "a process had ended soon after its last starts",
    "resumed": "a restarted process continued at its last position",
    "retired": "a member was removed from its group and stopped",
    "retried": "a client sent a request again",
    "returned": "a group that was left out of rounds takes part again",
    "silent": "a client turned to another gateway, because this one answered nothing",
    "skipped": "a group's own timestamp was the highest: a second round was not needed",
    "slow": "the guessed timestamp was wrong: it was agreed on as well",
    "spread": "a small bundle was sent to all members, because a majority alone did not answer soon",
    "stale": "a change of members came for an earlier configuration",
    "suspected": "a member was silent for too long",
    "trace-gap": "the trace lost deliveries from here on",
    "transferred": "a checkpoint was sent to a member that lagged",
    "trimmed": "the log was cut to what may still be asked for",
    "truncated": "the log was cut behind a checkpoint",
    "turned": "the process began a new configuration",
    "waited": "a message had its place in the order and waited for an earlier one",
}
PREFIXES: Final = {
    "fault-": "injected from outside: ",
    "global-": "between the groups: ",
    "comparison-": "replicas compared what they delivered: ",
}
"""Beginnings of names that are made from another name."""


def describe_note(name: str) -> str:
    """What a note means; an empty text for a name of another writer."""
    if name in NOTE_TEXTS:
        return NOTE_TEXTS[name]
    for prefix, meaning in PREFIXES.items():
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return meaning + NOTE_TEXTS.get(rest, rest.replace("-", " "))
    return ""
