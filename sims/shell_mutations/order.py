"""Planted bugs in the order in which a driver carries out the commands of its core.

Must NOT run anything (shell_mutants.py).
"""

from peers.driver.driver import Driver
from peers.driver.job_queue import JobQueue
from peers.driver.mesh_shell import MeshShell
from peers.driver.round_jobs import RoundJobs
from peers.exchange.buffer_release import BufferReleases
from sims.mutations.patch import Edit, Mutant

_DRIVER = ("tests/peers/driver/test_round_jobs.py",)
_RELEASES = ("tests/peers/exchange/test_buffer_release.py",)

ORDER_MUTANTS = (
    Mutant(
        "resume-before-the-step",
        "The ranks get the parameters of the previous round.",
        Edit(
            RoundJobs.do,
            "self._jobs.in_turn(lambda: self._resume(command, losses))",
            "self._resume(command, losses)",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "lease-overtakes-the-result-before-it",
        "A result is sent with the lease that the core gave after a later contribution.",
        Edit(
            RoundJobs.do,
            "self._jobs.in_turn(lambda: self._listener.handle(command))",
            "self._listener.handle(command)",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "new-ranks-get-the-result-of-lost-ones",
        "They train on parameters that they do not have, and draw contributed samples again.",
        Edit(RoundJobs._resume, "losses == self._losses", "losses <= self._losses"),
        tests=_DRIVER,
    ),
    Mutant(
        "restored-before-the-jobs-of-the-branch-before",
        "A contribution that was begun before the Restore is sent after it.",
        Edit(RoundJobs.do, "self._jobs.in_turn(self._restored)", "self._restored()"),
        tests=_DRIVER,
    ),
    Mutant(
        "memory-is-released-before-the-step-that-reads-it",
        "The next round's results overwrite the input of the outer step.",
        Edit(
            RoundJobs._release,
            "self._jobs.compute(\n        lambda: self.work.settle(fragment),\n"
            "        lambda _: self._data_plane.release(fragment, round_),\n    )",
            "self._data_plane.release(fragment, round_)",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "a-contribution-is-begun-before-the-step",
        "The contribution is the difference to the parameters of the previous round.",
        Edit(
            RoundJobs.do,
            "self._jobs.in_turn(lambda: self._data_plane.begin_encoding(fragment, round_, name))",
            "self._data_plane.begin_encoding(fragment, round_, name)",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "an-event-is-taken-while-commands-are-done",
        "The core decides on a state while half of its commands are carried out.",
        Edit(Driver.feed, "if self._waiting and isinstance", "if isinstance"),
        tests=_DRIVER,
    ),
    Mutant(
        "an-event-overtakes-the-inbox",
        "A step's payload is handled before the message that announced it.",
        Edit(Driver.feed, " and self._inbox.empty()", ""),
        tests=_DRIVER,
    ),
    Mutant(
        "the-loop-sleeps-past-a-nearer-deadline",
        "An event handled at once set an earlier deadline, but the loop does not wake for it.",
        Edit(
            Driver.feed, "if self.core.stopped or self.core.deadline < self._wakes_at:", "if False:"
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "bytes-are-kept-after-the-commands",
        "The sum that a command asks for lacks the slice that the core has just counted.",
        Edit(
            Driver._handle_event,
            "if isinstance(event, v.SliceBegun | v.SliceReceived | v.ResultReceived):\n"
            "        self.data_plane.decided(event, commands)\n    elif",
            "if isinstance(event, v.SliceBegun | v.SliceReceived | v.ResultReceived):\n"
            "        for command in commands:\n            self._do(command)\n"
            "        self.data_plane.decided(event, commands)\n        commands = []\n    elif",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "the-connection-ends-before-its-last-messages",
        "The last messages of a peer are taken for those of an unknown peer.",
        Edit(
            MeshShell.disconnected,
            "self._feed(v.PeerDisconnected(peer, why, lives))",
            "self._feed.__self__._handle_event(v.PeerDisconnected(peer, why, lives))",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "a-slow-peer-keeps-its-connection",
        "Messages that did not fit are lost and never sent again.",
        Edit(MeshShell.sent, "if not fits and self.mesh is not None:", "if False:"),
        tests=_DRIVER,
    ),
    Mutant(
        "the-driver-ends-before-its-last-step",
        "The run ends with a state that lacks its last round.",
        Edit(
            JobQueue.stop,
            "self._jobs.put_nowait(None)",
            "while not self._jobs.empty():\n"
            "        self._jobs.get_nowait()\n"
            "    self._jobs.put_nowait(None)",
        ),
        tests=_DRIVER,
    ),
    Mutant(
        "a-release-takes-another-fragment's-memory",
        "A result is overwritten while the ranks copy it.",
        Edit(BufferReleases.make, "if fragment in (None, at):", "if True:"),
        tests=_RELEASES,
    ),
    Mutant(
        "the-time-of-an-earlier-release-goes-on",
        "Its timer releases the memory of the next round while the ranks still copy.",
        Edit(BufferReleases.make, "due.cancel()", "pass"),
        tests=_RELEASES,
    ),
)
