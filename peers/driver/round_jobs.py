"""The ordered work of rounds: contributions, outer steps, and what the ranks are told of them.

Each waits in the job queue for the steps before it. Must NOT decide when a round is over, nor look
into a payload.
"""

import secrets
from collections.abc import Callable

from peers.driver.job_queue import JobQueue
from peers.exchange.buffer_release import BufferReleases
from peers.exchange.data_plane import DataPlane
from peers.exchange.interfaces import Listener, RoundWork, StateStore
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.peer import PeerCore
from protocols.types import Stamp

RoundCommand = (
    c.Encode
    | c.ApplyRound
    | c.SkipRound
    | c.AdoptKept
    | c.ReleaseRound
    | c.Applied
    | c.Resume
    | c.Leased
)


class RoundJobs:
    """The jobs of one run's rounds."""

    def __init__(
        self,
        core: PeerCore,
        *,
        listener: Listener,
        data_plane: DataPlane,
        jobs: JobQueue,
        feed: Callable[[v.Event], None],
    ) -> None:
        self._run_state = core.run_state
        self._listener = listener
        self._data_plane = data_plane
        self._jobs = jobs
        self._feed = feed
        self._lineage = 0
        """Lineage of the last applied entry."""
        self._losses = self._losses_taken = 0
        """How often the ranks were lost: fed to the core, and handled by it."""
        self._buffer_releases = BufferReleases(self._release)

    @property
    def work(self) -> RoundWork:
        work = self._data_plane.work
        assert work is not None, "the core asked for arithmetic before RunAccepted"
        return work

    @property
    def states(self) -> StateStore:
        states = self._data_plane.states
        assert states is not None, "the core asked for a state before RunAccepted"
        return states

    def ranks_lost(self) -> None:
        """The ranks are lost: the core will be told."""
        self._losses += 1

    def loss_taken(self) -> None:
        """The core has handled a loss of the ranks."""
        self._losses_taken += 1

    def close(self) -> None:
        """Cancel all delayed releases: the run is over."""
        self._buffer_releases.close()

    def do(self, command: RoundCommand) -> None:
        match command:
            case c.Resume():
                losses = self._losses_taken  # After the outer steps that it shows to the ranks.
                self._jobs.in_turn(lambda: self._resume(command, losses))
            case c.Leased():  # With the results of this event, and no earlier one.
                self._jobs.in_turn(lambda: self._listener.handle(command))
            case c.Applied(lineage=lineage):
                self._listener.handle(command)
                if lineage != self._lineage:
                    # After contributions of the earlier lineage, before those of this one.
                    self._lineage = lineage
                    self._buffer_releases.make()  # Releases of rounds of the earlier lineage.
                    self._jobs.in_turn(self._restored)
            case c.ReleaseRound(fragment=fragment, round=round_):
                size = self.states.state_bytes(fragment)
                self._buffer_releases.put_off(fragment, round_, copied_bytes=size)
            case c.Encode(fragment=fragment, round=round_):
                self._buffer_releases.make(fragment)  # The next result is applied as it arrives.
                # After the outer steps on which it builds. No two contributions have the same name.
                name = secrets.token_hex(16)
                self._jobs.in_turn(lambda: self._data_plane.begin_encoding(fragment, round_, name))
            case c.ApplyRound():
                self._apply(command)
            case c.SkipRound(stamp=stamp):
                self._jobs.compute(
                    lambda: self.work.skip(stamp), lambda digest: self._applied(stamp, digest)
                )
            case c.AdoptKept(fragment=fragment, round=round_):
                lineage = self._run_state.lineage
                self._jobs.compute(
                    lambda: self.states.adopt_kept(fragment, round_, lineage=lineage),
                    lambda digest: self._feed(v.KeptAdopted(fragment, round_, digest)),
                )

    def _apply(self, command: c.ApplyRound) -> None:
        stamp, borders = command.stamp, command.borders
        parts, terms = self._data_plane.parts(stamp, len(borders) - 1)
        own = self._data_plane.own
        seconds = own.seconds(stamp)
        if seconds is not None:
            self._listener.reduced(stamp, seconds)
        self._jobs.compute(
            lambda: self.work.apply(stamp, borders, parts, terms),
            lambda digest: self._applied(stamp, digest),
        )

    def _applied(self, stamp: Stamp, digest: str) -> None:
        self._listener.applied(stamp, digest)
        self._feed(v.RoundApplied(stamp, digest))

    def _release(self, fragment: int, round_: int) -> None:
        """Free results after the steps that read them: their memory is reused."""
        self._jobs.compute(
            lambda: self.work.settle(fragment),
            lambda _: self._data_plane.release(fragment, round_),
        )

    def _resume(self, command: c.Resume, losses: int) -> None:
        """`losses`: losses of ranks that the core knew of at its decision. The ranks that wait for
        this result may be lost by now, and new ones be ready. These must not take it: they would go
        on from parameters that they do not have, and take their own result as the answer to their
        first contribution, with its samples leased twice."""
        if losses == self._losses:
            self._listener.handle(command)

    def _restored(self) -> None:
        """Drop the payloads of all other lineages: they are old."""
        self._data_plane.lineage_changed(self._run_state.lineage)
