"""Bugs to plant into the order in which a driver does what its core says.

Must NOT run anything (shell_mutants.py).
"""

from peers.driver import Driver
from peers.exchange.buffer_release import Releases
from sims.mutations.patch import Edit, Mutant

_DRIVER = ("tests/peers/exchange/test_interfaces.py",)
_RELEASES = ("tests/peers/exchange/test_buffer_release.py",)

ORDER_MUTANTS = (
    Mutant(
        "resume-before-the-step",
        "The ranks get the parameters of the round before.",
        Edit(
            Driver._do,
            "self.in_turn(lambda: self._resume(command, losses))",
            "self._resume(command, losses)",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "lease-overtakes-the-result-before-it",
        "A result goes with the lease that the core gave after a later contribution.",
        Edit(
            Driver._do,
            "self.in_turn(lambda: self._listener.handle(command))",
            "self._listener.handle(command)",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "new-ranks-get-the-result-of-lost-ones",
        "They train on parameters that they do not have, and draw samples that they contributed.",
        Edit(Driver._resume, "losses == self._losses", "losses <= self._losses"),
        tests=_DRIVER,
    ),
    Mutant(
        "restored-before-the-jobs-of-the-branch-before",
        "A contribution that was begun before the Restore is sent after it.",
        Edit(Driver._do, "self.in_turn(self._restored)", "self._restored()"),
        tests=_DRIVER,
    ),
    Mutant(
        "memory-is-released-before-the-step-that-reads-it",
        "The next round's results are written into what the step is made from.",
        Edit(
            Driver._release,
            "self._job(\n        lambda: self.work.settle(fragment), "
            "lambda _: self.exchange.release(fragment, round_)\n    )",
            "self.exchange.release(fragment, round_)",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "a-contribution-is-begun-before-the-step",
        "It is the difference to parameters of the round before.",
        Edit(
            Driver._compute,
            "self._jobs.put_nowait((lambda: self.exchange.encode(fragment, round_, name), None))",
            "self.exchange.encode(fragment, round_, name)",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "an-event-is-taken-while-commands-are-done",
        "The core decides on a state whose commands are half done.",
        Edit(Driver.feed, "if self._waiting and isinstance", "if isinstance"),
        tests=_DRIVER,
    ),
    Mutant(
        "an-event-overtakes-the-inbox",
        "A step's payload is taken before the message that it follows from.",
        Edit(Driver.feed, " and self._inbox.empty()", ""),
        tests=_DRIVER,
    ),
    Mutant(
        "the-loop-sleeps-past-a-nearer-deadline",
        "What was taken at once asked for an earlier wake-up, and nobody wakes.",
        Edit(
            Driver.feed, "if self.core.stopped or self.core.deadline < self._wakes_at:", "if False:"
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "bytes-are-kept-after-the-commands",
        "The sum that a command asks for lacks the slice that the core has just counted.",
        Edit(
            Driver._take,
            "if isinstance(event, v.SliceBegun | v.SliceReceived | v.ResultReceived):\n"
            "        self.exchange.decided(event, commands)\n    elif",
            "if isinstance(event, v.SliceBegun | v.SliceReceived | v.ResultReceived):\n"
            "        for command in commands:\n            self._do(command)\n"
            "        self.exchange.decided(event, commands)\n        commands = []\n    elif",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "the-connection-ends-before-its-last-messages",
        "What a peer said before it went is taken for an unknown peer's.",
        Edit(
            Driver.disconnected,
            "self.feed(v.PeerDisconnected(peer, why))",
            "self._take(v.PeerDisconnected(peer, why))",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "a-slow-peer-keeps-its-connection",
        "Messages that did not fit are lost, and nobody sends them again.",
        Edit(Driver._sent, "if not fits and self.mesh is not None:", "if False:"),
        tests=_DRIVER,
    ),
    Mutant(
        "the-driver-ends-before-its-last-step",
        "The run ends with a state that lacks its last round.",
        Edit(
            Driver.run,
            "self._jobs.put_nowait(None)",
            "while not self._jobs.empty():\n"
            "                    self._jobs.get_nowait()\n"
            "                self._jobs.put_nowait(None)",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "a-release-takes-another-fragment's-memory",
        "A result is written over while the ranks copy it.",
        Edit(Releases.make, "if fragment in (None, at):", "if True:"),
        tests=_RELEASES,
    ),
    Mutant(
        "the-time-of-an-earlier-release-goes-on",
        "It gives back the memory of the next round while the ranks still copy.",
        Edit(Releases.make, "due.cancel()", "pass"),
        tests=_RELEASES,
    ),
)
