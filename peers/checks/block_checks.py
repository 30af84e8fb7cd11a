"""The shell of owner checks: draws samples, sends and receives blocks, compares them.

A sum is computed again with the arithmetic that made it, and compared bit by bit. In a gather the
result consists of the contributions, so contributors send only digests of their blocks. Must NOT
decide which peer is at fault.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from peers.checks.samples import DIGEST_BYTES, PartSample, digest_of, drawn
from peers.exchange.data_plane import DataPlane
from peers.exchange.interfaces import Bytes, RoundWork
from peers.exchange.payload_keys import ResultKey, slice_key
from peers.exchange.payload_limits import borders_of
from peers.exchange.pieces import Payload
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import peer as m
from protocols.peer import PeerCore
from protocols.rounds import block_elements, sample_size
from protocols.types import Contributor, LowcommError, PartBlocks, PeerId, Stamp

ANSWER_BYTES = 8 << 10
"""Bytes of a block answer in one message. It shares the connection with heartbeats, and each whole
message is a sign of life while packets of later ones are lost."""
NAMED_MAX = 8
"""Differing blocks of a part of which the owner is asked for its bytes."""
Answer = tuple[PeerId, PeerId]
"""(sender, contributor) of some blocks."""


@dataclass(slots=True)
class IncomingAnswer:
    """An answer that is under way."""

    parts: tuple[tuple[int, int], ...]
    """(part, bytes of its blocks) in order."""
    data: bytearray = field(default_factory=bytearray)

    @property
    def size(self) -> int:
        return sum(size for _, size in self.parts)

    def divided(self) -> dict[int, memoryview]:
        """By part, the blocks of the whole answer."""
        found, at = dict[int, memoryview](), 0
        for part, size in self.parts:
            found[part] = memoryview(self.data)[at : at + size]
            at += size
        return found


@dataclass(slots=True)
class Check:
    """The check of one attempt."""

    stamp: Stamp
    sample: tuple[PartSample, ...]
    incoming: dict[Answer, IncomingAnswer] = field(default_factory=dict[Answer, IncomingAnswer])
    blocks: dict[Answer, dict[int, memoryview]] = field(
        default_factory=dict[Answer, dict[int, memoryview]]
    )
    """By answer and part, the blocks, or their digests in a gather."""
    copies: dict[PeerId, tuple[PartSample, ...]] = field(
        default_factory=dict[PeerId, tuple[PartSample, ...]]
    )
    """By owner, the blocks of which it was asked for its bytes."""


class BlockChecks:
    """The checks of one peer, one for each fragment."""

    def __init__(
        self,
        core: PeerCore,
        data_plane: DataPlane,
        *,
        send: Callable[[PeerId, m.Control], None],
        feed: Callable[[v.Event], None],
        draw: Callable[[int, int], tuple[int, ...]] = drawn,
    ) -> None:
        """`draw(blocks, wanted)`: returns at most `wanted` of so many blocks."""
        self._core = core
        self._data_plane = data_plane
        self._send = send
        self._feed = feed
        self._draw = draw
        self._open: dict[int, Check] = {}
        """By fragment."""

    @property
    def _me(self) -> PeerId:
        me = self._core.me
        return me.peer

    # Commands -------------------------------------------------------------------------------

    def do(self, command: c.BlockCommand) -> None:
        match command:
            case c.SendBlocks():
                self._answer(command)
            case c.AskBlocks(stamp=stamp):
                if stamp.fragment not in self._open or self._of(stamp) is None:
                    self._open[stamp.fragment] = Check(stamp, self._drawn(command))
                check = self._open[stamp.fragment]
                self._request(check, command.peer, command.peer, check.sample)
            case c.AskCopies(peer=owner):
                if (check := self._of(command.stamp)) is not None:
                    sample = tuple(self._sampled(command.stamp, command.sample))
                    check.copies[owner] = sample
                    self._request(check, owner, command.contributor, sample)
            case c.CompareBlocks(stamp=stamp):
                if (check := self._of(stamp)) is not None:
                    wrong = self._wrong(check, command.contributors)
                    self._feed(v.BlocksCompared(stamp, wrong))
            case c.CompareCopies(stamp=stamp, owner=owner):
                if (check := self._of(stamp)) is not None:
                    differing = [x for x in command.contributors if self._differs(check, owner, x)]
                    self._feed(v.CopiesCompared(stamp, owner, tuple(differing)))

    def drop_fragment(self, fragment: int) -> None:
        """The fragment's round is committed."""
        self._open.pop(fragment, None)

    def blocks_received(self, peer: PeerId, message: m.Blocks) -> None:
        """A piece of an answer. Only pieces in order, of answers that were asked for, get
        memory."""
        check, key = self._of(message.stamp), (peer, message.contributor)
        incoming = check.incoming.get(key) if check is not None else None
        if check is None or incoming is None or incoming.size != message.total_bytes:
            return
        data = incoming.data
        if message.offset_bytes != len(data) or len(data) + len(message.piece) > incoming.size:
            return
        data += message.piece
        if len(data) == incoming.size:
            check.blocks[key] = check.incoming.pop(key).divided()
            self._feed(v.BlocksReceived(peer, check.stamp, message.contributor))

    # Questions and answers ------------------------------------------------------------------

    def _of(self, stamp: Stamp) -> Check | None:
        """The check of this attempt; None if another one is open."""
        check = self._open.get(stamp.fragment)
        return check if check is not None and check.stamp == stamp else None

    def _drawn(self, command: c.AskBlocks) -> tuple[PartSample, ...]:
        """The sample of an attempt."""
        empty = [PartBlocks(part, (0,)) for part in command.parts]
        wanted = sample_size(command.checkers)
        return tuple(each.drawn(self._draw, wanted) for each in self._sampled(command.stamp, empty))

    def _sampled(self, stamp: Stamp, parts: Sequence[PartBlocks]) -> Iterator[PartSample]:
        """Samples with the sizes of their parts; none if the view is over."""
        run_state = self._core.run_state
        borders, run = borders_of(run_state, stamp), run_state.run
        if borders is None or run is None:
            return
        for each in parts:
            start, stop = borders[each.part : each.part + 2]
            yield PartSample(each, start, stop, block_elements(run.grain))

    def _request(
        self, check: Check, peer: PeerId, contributor: PeerId, sample: tuple[PartSample, ...]
    ) -> None:
        """Ask again from the beginning if the connection has ended."""
        fragment = check.stamp.fragment
        size, gathers = partial(self._work.contribution_bytes, fragment), self._gathers(fragment)
        parts = tuple(
            (each.of.part, DIGEST_BYTES if gathers else size(each.elements)) for each in sample
        )
        check.incoming[peer, contributor] = IncomingAnswer(parts)
        wanted = tuple(each.of for each in sample)
        self._send(peer, m.BlocksWanted(check.stamp, contributor, wanted))

    def _answer(self, command: c.SendBlocks) -> None:
        stamp, contributor, found = command.stamp, command.contributor, list[bytes]()
        for each in self._sampled(stamp, command.sample):
            if contributor.peer == self._me:
                blocks = self._own(stamp, each)
            else:
                blocks = self._copied(stamp, each, contributor)
            if blocks is None:
                return  # The round is over.
            found.append(digest_of(blocks) if self._gathers(stamp.fragment) else blocks)
        whole = b"".join(found)
        for at in range(0, len(whole), ANSWER_BYTES):
            piece = whole[at : at + ANSWER_BYTES]
            self._send(command.peer, m.Blocks(stamp, contributor.peer, at, len(whole), piece))

    # Comparing ------------------------------------------------------------------------------

    def _wrong(
        self, check: Check, contributors: tuple[Contributor, ...]
    ) -> tuple[v.WrongPart, ...]:
        """The differing results. A result or a contribution that is not here any more differs from
        nothing: the attempt is over."""
        found: list[v.WrongPart] = []
        gathers = self._gathers(check.stamp.fragment)
        for each in check.sample:
            part, terms = each.of.part, list[Bytes]()
            result = self._data_plane.inbound.results.get(ResultKey(check.stamp, part))
            own = self._own(check.stamp, each)
            if result is None or own is None:
                continue
            for term in contributors:
                if term.peer != self._me:
                    terms.append(check.blocks[term.peer, term.peer][part])
                else:
                    terms.append(digest_of(own) if gathers else own)
            compare = self._compare_layers if gathers else self._compare_sum
            wrong = compare(check.stamp, each, result, terms, contributors)
            found += [wrong] if wrong is not None else []
        return tuple(found)

    def _compare_sum(
        self,
        stamp: Stamp,
        sample: PartSample,
        result: Payload,
        terms: Sequence[Bytes],
        contributors: tuple[Contributor, ...],
    ) -> v.WrongPart | None:
        size_of = partial(self._work.result_bytes, stamp.fragment)
        made = memoryview(bytearray(size_of(sample.elements)))
        try:
            self._work.reduce(stamp.fragment, sample.elements, terms, contributors, made)
        except LowcommError:
            # Values that are not finite: in the whole piece all contributions may have some, so
            # that the owner had to sum them. Or a contributor sends such values to us only.
            return None
        block_bytes = size_of(sample.block)
        differing = sample.differing(
            made, sample.cut_blocks(result.buffer, block_bytes), block_bytes
        )
        if not differing:
            return None
        return v.WrongPart(PartBlocks(sample.of.part, differing[:NAMED_MAX]))

    def _compare_layers(
        self,
        stamp: Stamp,
        sample: PartSample,
        result: Payload,
        terms: Sequence[Bytes],
        contributors: tuple[Contributor, ...],
    ) -> v.WrongPart | None:
        block_bytes, differing = (
            self._work.result_bytes(stamp.fragment, sample.block),
            list[PeerId](),
        )
        for layer, (term, digest) in enumerate(zip(contributors, terms, strict=True)):
            if digest_of(sample.cut_layer(result, layer, block_bytes)) != digest:
                differing.append(term.peer)
        return v.WrongPart(sample.of, tuple(differing)) if differing else None

    def _differs(self, check: Check, owner: PeerId, contributor: PeerId) -> bool:
        """Has the owner other bytes of a contribution than the contributor itself?"""
        block_bytes = self._work.contribution_bytes(check.stamp.fragment, check.sample[0].block)
        whole = {each.of.part: each for each in check.sample}
        for each in check.copies[owner]:
            part, own = each.of.part, self._own(check.stamp, each)
            if contributor != self._me:
                sent = check.blocks[contributor, contributor][part]
                own = whole[part].chosen(sent, each.of.blocks, block_bytes)
            if own is not None and own != bytes(check.blocks[owner, contributor][part]):
                return True
        return False

    # Bytes ----------------------------------------------------------------------------------

    @property
    def _work(self) -> RoundWork:
        work = self._data_plane.work
        assert work is not None, "results are checked before RunAccepted"
        return work

    def _gathers(self, fragment: int) -> bool:
        return self._work.layers(fragment, 2) > 1

    def _own(self, stamp: Stamp, sample: PartSample) -> bytes | None:
        """Blocks of our own contribution; None if it is not here any more."""
        encoding = self._data_plane.own.encoded.get((stamp.fragment, stamp.round))
        if encoding is None:
            return None
        block_bytes = self._work.contribution_bytes(stamp.fragment, sample.block)
        return sample.cut_blocks(encoding.cut(sample.start, sample.stop), block_bytes)

    def _copied(self, stamp: Stamp, sample: PartSample, contributor: Contributor) -> bytes | None:
        """Blocks of a contribution that we have received as an owner."""
        payload = self._data_plane.inbound.slices.get(slice_key(stamp, sample.of.part, contributor))
        if payload is None:
            return None
        block_bytes = self._work.contribution_bytes(stamp.fragment, sample.block)
        return sample.cut_blocks(payload.buffer, block_bytes)
