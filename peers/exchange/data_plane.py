"""The data plane of rounds: contributions, slices, sums and results in bytes.

The core commands what to encode, sum and send; it is done piece by piece, in the event loop's
thread. Must NOT decide whether a payload counts, or what is summed.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from peers.exchange.inbound import Inbound, Received
from peers.exchange.interfaces import Bytes, RoundWork, SlicesError, StateStore
from peers.exchange.outbound import Outbounds, ResultStream, SliceStream
from peers.exchange.own_contributions import OwnContributions
from peers.exchange.payload_keys import ResultKey, SliceKey, slice_key
from peers.exchange.payload_limits import borders_of, is_part, size_of
from peers.exchange.pieces import PIECE_ELEMENTS, Encoding, Payload, Pool
from peers.exchange.reducer import Reducer
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import peer as m
from protocols.peer import PeerCore
from protocols.rounds import PartResult
from protocols.types import Contributor, LowcommError, PeerId, Stamp


class DataPlane:
    """The data plane of one run."""

    def __init__(
        self,
        core: PeerCore,
        *,
        feed: Callable[[v.Event], None],
        note: Callable[[str], None],
        failed: Callable[[LowcommError], None],
    ) -> None:
        """`note`: called with the reason if bytes of another peer are damaged. `failed`: called if
        our own arithmetic fails."""
        self.work: RoundWork | None = None
        """None until the run's sizes are known: before, no peer can make us hold bytes. Stays None
        in a stepwise run."""
        self.states: StateStore | None = None
        """As `work`, but set in every run."""
        self.feed = feed
        self.own = OwnContributions()
        self.outbounds = Outbounds(failed)
        self._core = core
        self._note = note
        self._failed = failed
        self._pool = Pool()
        self.inbound = Inbound(self, self._pool)
        self.reducer = Reducer(
            grew=self._sum_grew, done=self._reduced, damaged=self._damaged, failed=failed
        )
        self._damages = 0

    @property
    def discarded(self) -> int:
        """Payloads that were dropped: of no open round, unwanted, or damaged (I3)."""
        return self.inbound.refused + self._damages

    # Commands -------------------------------------------------------------------------------

    def begin_encoding(self, fragment: int, round_: int, manifest: str) -> None:
        """Give the ranks' contribution its name; its pieces are encoded when they are first
        needed."""
        run_state, work = self._core.run_state, self.work
        run = run_state.run
        assert run is not None
        assert work is not None
        now = asyncio.get_running_loop().time()
        elements = run.fragment_elements[fragment]
        encoding = Encoding(work, fragment, elements, self._pool, manifest=manifest)
        self.own.begin_contribution(fragment, round_, encoding, now)
        self.feed(v.Encoded(fragment, round_, manifest))

    def send_slice(self, command: c.SendSlice) -> bool:
        """False if the peer is too slow: too much waits for it."""
        stamp = command.stamp
        encoding = self.own.encoding(stamp.fragment, stamp.round)
        if encoding is None:
            return True
        elements = command.stop - command.start
        header = m.ContributionChunk(stamp, command.part, command.contributor, 0, elements)
        return self.outbounds.send(command.peer, SliceStream(header, encoding, command.start))

    def send_result(self, command: c.SendResult) -> bool:
        stamp, part = command.stamp, command.part
        results = self.inbound.results
        payload = results.get(ResultKey(stamp, part))
        if payload is None:
            return True
        left_out = owned_there(self.inbound, command, payload)
        of = (stamp, part, command.contributors, "", 0, payload.elements)
        header = m.ResultChunk(*of, 0, payload.layers, left_out is not None)
        return self.outbounds.send(command.peer, ResultStream(header, payload, left_out=left_out))

    def reduce(self, command: c.ReducePart) -> None:
        """Begin a sum: our own slice is encoded when it is needed, the others arrive in pieces."""
        work, stamp, part = self.work, command.stamp, command.part
        me = self._core.me
        assert work is not None
        slices: list[Payload | Encoding] = []
        for term in command.contributors:
            if term.peer == me.peer:
                slices.append(self.own.encoded[stamp.fragment, stamp.round])
            else:
                slices.append(self.inbound.slices[slice_key(stamp, part, term)])
        size_of = partial(work.result_bytes, stamp.fragment)
        elements = command.stop - command.start
        layers = work.layers(stamp.fragment, len(command.contributors))
        wrong = _of_other_sizes(slices, elements)
        if wrong:
            whose = command.contributors[wrong[0]].peer
            self._damaged(command, SlicesError(wrong, f"{whose} sent no slice of part {part}"))
            return
        buffer = self._pool.take(layers * size_of(elements))
        result = Payload(elements, size_of, buffer, layers=layers)
        result.terms = command.contributors
        self.inbound.results[ResultKey(stamp, part)] = result
        self.reducer.begin_sum(work, me.peer, command, slices, result)

    def drop_slices(self, fragment: int, round_: int) -> None:
        """The round is committed: free its contributions."""
        self._end_round(fragment, round_, released=False)

    def drop_result(self, stamp: Stamp, part: int) -> None:
        """Drop a result of a peer that does not own the part. Its memory is not reused, since a
        step may have begun from it."""
        results = self.inbound.results
        results.pop(ResultKey(stamp, part), None)

    def release(self, fragment: int, round_: int) -> None:
        """Free everything of this round and all earlier ones."""
        self._end_round(fragment, round_, released=True)
        run_state = self._core.run_state
        run = run_state.run
        self._pool.round_over(len(run.fragment_elements) if run is not None else 1)
        self.own.forget_times(fragment, round_)

    def _end_round(self, fragment: int, round_: int, *, released: bool) -> None:
        self.reducer.drop(fragment, round_)
        self.outbounds.drop(fragment, round_, released=released)
        self.inbound.end(fragment, round_, released=released)
        self.own.end(fragment, round_)

    def lineage_changed(self, lineage: int) -> None:
        """The run is in this lineage: drop payloads of all others. Their memory is not reused,
        since a step may still read a result."""
        self.reducer.keep(lineage)
        self.outbounds.keep(lineage)
        self.inbound.keep(lineage)
        self.own.clear()  # All of these are of the earlier lineage.

    def parts(self, stamp: Stamp, count: int) -> tuple[list[Bytes], tuple[Contributor, ...]]:
        """(buffers of all parts of a round's result, its contributors)."""
        found = [self.inbound.results[ResultKey(stamp, part)] for part in range(count)]
        return [payload.buffer for payload in found], found[0].terms

    def decided(self, event: Received, commands: Sequence[c.Command]) -> None:
        """The core has handled a payload: keep its bytes if it counts, else drop them."""
        stamp, part = event.stamp, event.part
        wanted, run_state = c.Discard(event) not in commands, self._core.run_state
        if wanted and run_state.run is not None:
            held = self._core.rounds[stamp.fragment].exchange.held
            if isinstance(event, v.ResultReceived):
                wanted = held.result(stamp, part) == PartResult.from_event(event)
            else:
                kind = held.slices if isinstance(event, v.SliceReceived) else held.begun
                slices = kind.get((stamp.round, stamp.view, part), {})
                wanted = slices.get(event.sender) == event.contributor
        self.inbound.decided(event, wanted=wanted)

    # Sums -----------------------------------------------------------------------------------

    def grew(self, key: SliceKey) -> None:
        if self.work is not None:
            self.reducer.grew(self.work, key)

    def layers(self, fragment: int, contributors: int) -> int:
        return self.work.layers(fragment, contributors) if self.work is not None else 0

    def own_layer(self, key: ResultKey, payload: Payload) -> int | None:
        encoding = self.own.encoding(key.stamp.fragment, key.stamp.round)
        if encoding is None:
            return None
        me = self._core.me
        ours = (me.peer, encoding.manifest)
        names = [(term.peer, term.manifest) for term in payload.terms]
        return names.index(ours) if ours in names else None

    def own_piece(self, key: ResultKey, payload: Payload, number: int) -> Bytes | None:
        stamp, borders = key.stamp, borders_of(self._core.run_state, key.stamp)
        encoding = self.own.encoding(stamp.fragment, stamp.round)
        if encoding is None or borders is None or self.own_layer(key, payload) != payload.own:
            return None  # The round or the view is over.
        if not is_part(borders, key.part, payload.elements):
            return None
        start = borders[key.part] + number * PIECE_ELEMENTS
        stop = min(start + PIECE_ELEMENTS, borders[key.part] + payload.elements)
        try:
            return encoding.cut(start, stop)
        except LowcommError as error:
            self._failed(error)
            return None

    def result_grew(self, key: ResultKey, payload: Payload, number: int) -> bool:
        stamp, part = key
        self.own.result_grew(stamp)
        borders, terms, work = borders_of(self._core.run_state, stamp), payload.terms, self.work
        if work is None:
            return False
        if borders is not None and not is_part(borders, part, payload.elements):
            return False  # It began before we read of this view.
        start, piece = number * PIECE_ELEMENTS, payload.piece(number)
        elements = min(PIECE_ELEMENTS, payload.elements - start)
        try:
            if borders is None:
                work.check_result(stamp.fragment, piece, elements, terms)
            else:
                work.ahead(stamp, borders[part] + start, piece, payload.buffer, elements, terms)
        except LowcommError as error:
            self._note(f"round {stamp.round}: {error}")
            return False
        return True

    def _sum_grew(self, key: ResultKey, payload: Payload, number: int) -> None:
        self.outbounds.wake_all()
        self.result_grew(key, payload, number)

    def _reduced(self, command: c.ReducePart, digest: str) -> None:
        self.feed(v.PartReduced(command.stamp, command.part, digest))

    def _damaged(self, command: c.ReducePart, error: LowcommError) -> None:
        """A slice cannot be averaged: another attempt excludes its peer. If the whole sum fails,
        the leader's timeout ends the attempt."""
        self._damages += 1
        self._note(f"round {command.stamp.round}: {error}")
        if isinstance(error, SlicesError):
            void = tuple(command.contributors[number].peer for number in error.numbers)
            self.feed(v.PartReduced(command.stamp, command.part, "", void))

    # The links' side ------------------------------------------------------------------------

    def meet(self, peer: PeerId, incarnation: int, *, far: bool = False) -> None:
        """The peer is connected. `far`: round trips are long."""
        self.inbound.lives[peer] = incarnation
        self.outbounds.meet(peer, far=far)

    def forget(self, peer: PeerId) -> None:
        """The peer is disconnected: the core commands again what it still needs."""
        self.outbounds.forget(peer)
        self.inbound.forget(peer)

    def padding_bytes(self, peer: PeerId) -> int:
        """Bytes of padding: a slice's size if there is one other peer, else 0. With several peers
        each connection would measure the whole line, and several begin faster anyway."""
        run_state, me, work = self._core.run_state, self._core.me, self.work
        pair = set(run_state.receivers) == {peer, me.peer}
        if run_state.run is None or work is None or not pair:
            return 0
        sizes = enumerate(run_state.run.fragment_elements)
        return max(work.contribution_bytes(fragment, size // 2) for fragment, size in sizes)

    def size_of(self, peer: PeerId, chunk: m.PieceChunk) -> Callable[[int], int] | None:
        """A function of encoded sizes if this payload may come from this peer; else None."""
        if self.work is None or self.states is None:
            return None
        return size_of(self._core, self.work, peer, chunk, beside=self.inbound.elements_beside)


def _of_other_sizes(slices: Sequence[Payload | Encoding], elements: int) -> tuple[int, ...]:
    """Indexes of slices with another number of elements: they began before we read of their
    view."""
    numbered = enumerate(slices)
    return tuple(n for n, x in numbered if isinstance(x, Payload) and x.elements != elements)


def owned_there(inbound: Inbound, command: c.SendResult, payload: Payload) -> int | None:
    """The slice of a gather that the receiver has: its own, if it contributed it in its present
    incarnation. None for an earlier incarnation's slice, and for a committed round, of which it
    is not known any more."""
    if payload.layers == 1:
        return None
    for layer, term in enumerate(command.contributors):
        key = slice_key(command.stamp, command.part, term)
        if term.peer == command.peer and (slice_ := inbound.slices.get(key)) is not None:
            return layer if slice_.life == inbound.lives.get(term.peer) else None
    return None
