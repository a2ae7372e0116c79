"""Services: state machines of users that several groups execute, with results, exchange and reads.

    caller             group A: replicas A1, A2, A3             group B: replicas B1, B2, B3
      |--Command m to {A, B}, ordered by the protocol ------------------------->|
      |                deliver m                                   deliver m
      |                run to `yield a`                            run to `yield b`
      |                    |--Value(m, 0, a) to {B}, ordered ---------->|
      |                    |<---------- Value(m, 0, b) to {A}, ordered--|
      |                deliver b                                   deliver a
      |                resume with {A: a, B: b}, return            resume with {A: a, B: b}, return
      |<--Result of A------|                                            |
      |<--Result of B---------------------------------------------------|

**One rule carries everything: the state of an executor is a function of what its group has delivered.** Commands are
ordered messages, and so are the values that groups exchange. Nothing else enters: no clock (`at.now` is stamped by the
server that takes the call and makes the bundle with it, or by the caller where the protocol has no bundles, and is
carried in the command), no randomness (`at.random` is seeded by the call), no value that came by another
way. What the order promises for messages therefore holds for services:

- *Replicas agree.* They deliver the same messages at the same positions, and execute the same function of them.
- *Restarts.* A replica that restarts with an older snapshot gets the deliveries behind it again, the values among them,
  and needs nobody: no group must keep a value for the others after its message is ordered, and none is asked for one.
- *Snapshots* are taken at any position. A command that waits at a `yield` is in the snapshot as one that has not begun,
  together with the values that have come; a restored executor runs it again to the same `yield`. That is right because
  commands change state only after their last `yield`. The simulator checks this for every command; a live replica
  notices when a value that is computed again differs from the first.
- *Membership* changes need nothing: groups stay, and a new replica gets a snapshot and the deliveries behind it.

**Who sends a value.** Every replica of a group computes it, and owes it (`Executor.owed`) until it delivers the value
itself. The leader multicasts it to the other destinations at once and, when it has the receipt, to its own group; every
other replica does the same if the value is still owed after a while. If the leader dies before it sends, another one
sends; if it dies between the two messages, the value is still owed, and another one sends both. So nobody stops owing a
value that is not ordered in the other groups. A second message with the same value is ignored. A group that raises, or
returns before its first `yield`, owes a message that says so to all others, and one that returns after fewer of them
than another group owes it to that one, when it hears of its value: there `GroupEndedError` is raised at the `yield`.

**Repeated calls.** A call with a key may be delivered in several messages, and a group may execute one that another
group takes for a repetition: each forgets keys by its own count and time, and a key may be used for two calls with
different destinations. So values name the message of the call by its time (`Command.exchange`), and a group that does
not execute a message owes the others what says so.

**No deadlock.** Groups execute one command after the other. The order of all messages has no cycle, so among the
unfinished commands there is one that no unfinished command precedes in any of its groups. All its groups have begun it,
or can: each computes its value without waiting, some correct replica of each multicasts it, and the multicast is
delivered. By induction over its yields the command finishes. A group that has lost its majority blocks the commands
that are addressed to it, and in their other groups what is ordered behind them; `Executor.describe_waiting` names it.

**Exactly once.** A call is a session and a request number. A group executes a request if it is new, and remembers its
result until the session says that it has it (each command carries the first request whose results are missing). A
request below that number, or with a result, or queued, is a duplicate. Groups remember MAX_SESSIONS sessions; a retry
from a session that was forgotten is refused, not executed. An exception that a command raises is its result; state that
it changed before stays changed, equally at every replica.

**Results** are read from any replica that has executed the command. A lost reply, or the death of the replica that
would have sent it, costs another question and no execution. A call returns when it has a result of each destination and
the receipt of its message. With `order = "real-time"` the receipt says that everything before it has been multicast:
then calls are linearizable over all groups.

**Cost.** A command without `yield` costs one multicast. A `yield` between several groups costs one more multicast per
group, in parallel, before its callers are answered, and one to each group itself, afterwards. Sending values directly
would save a message delay or two, and would make groups keep values for each other until every replica has passed them
durably; here the log does that. A group waits at a `yield` with everything behind it: commands do not overtake.
"""
