"""Planted bugs in the data between peers: payloads, seals, tickets, messages.

Must NOT run anything (shell_mutants.py).
"""

from peers.checks.block_checks import BlockChecks
from peers.connections.control import IncomingMessages, Link
from peers.connections.encryption import Keys, Seal, SealedReader, Tickets
from peers.exchange import pieces
from peers.exchange.data_plane import DataPlane, owned_there
from peers.exchange.inbound import Inbound
from peers.exchange.outbound import Outbound, ResultStream, SliceStream
from peers.exchange.own_contributions import OwnContributions
from peers.exchange.payload_keys import ResultKey
from peers.exchange.payload_limits import size_of
from peers.exchange.pieces import Encoding, Payload
from peers.exchange.reducer import Reducer, Sum
from peers.steps.step_shell import StepShell
from peers.transfer.receiver import IncomingTransfer
from sims.mutations.patch import Edit, Mutant

_REFUSALS = (
    "tests/peers/driver/test_driver.py"
    "::test_what_cannot_belong_to_the_run_gets_no_memory_and_is_counted",
)
_EXCHANGE = ("tests/peers/exchange/test_data_plane.py",)
_INBOUND = ("tests/peers/exchange/test_inbound.py",)
_OUTBOUND = ("tests/peers/exchange/test_outbound.py",)
_PIECES = ("tests/peers/exchange/test_pieces.py",)
_REDUCTION = ("tests/peers/exchange/test_reducer.py",)
_SEALS = ("tests/peers/connections/test_encryption.py",)
_TICKETS = ("tests/peers/connections/test_encryption.py",)
_TRANSFER = ("tests/peers/transfer/test_receiver.py",)
_KEYS = ("tests/peers/exchange/test_payload_keys.py",)
_CHECKS = ("tests/peers/checks/test_block_checks.py",)
_LINK = ("tests/peers/connections/test_control.py",)

PAYLOAD_MUTANTS = (
    Mutant(
        "a-slice-of-another-peer-is-written",
        "A peer writes into the contribution of another peer.",
        Edit(Inbound._begun, "if key.contributor.peer != peer:", "if False:"),
        Edit(
            Inbound._begin,
            "elif isinstance(key, SliceKey) and key.contributor.peer != peer:",
            "elif False:",
        ),
        tests=_INBOUND,
    ),
    Mutant(
        "a-piece-is-written-by-two-connections",
        "Bytes change after their digest was compared.",
        Edit(Inbound.place, "if payload.has(index) or piece in coming:", "if payload.has(index):"),
        tests=_INBOUND,
    ),
    Mutant(
        "a-whole-piece-is-written-again",
        "Bytes change after they were summed.",
        Edit(Inbound.place, "if payload.has(index) or piece in coming:", "if piece in coming:"),
        tests=_INBOUND,
    ),
    Mutant(
        "a-piece-of-a-refused-payload-counts",
        "It arrives in memory that belongs to another payload by then.",
        Edit(
            Inbound.arrived,
            "payload is None or self._open.get(peer, {}).get(key) is not payload",
            "payload is None",
        ),
        tests=_INBOUND,
    ),
    Mutant(
        "a-result's-digest-is-not-compared",
        "Bytes damaged on the way become part of the model.",
        Edit(
            Inbound.arrived,
            "isinstance(chunk, ResultChunk) and digest.hex() != chunk.digest",
            "False",
        ),
        tests=_INBOUND,
    ),
    Mutant(
        "half-a-payload-survives-its-connection",
        "Pieces of two incarnations of a peer make one contribution.",
        Edit(Inbound.forget, "self._open.pop(peer, None)", "pass"),
        tests=_INBOUND,
    ),
    Mutant(
        "payloads-of-a-void-branch-stay",
        "Round numbers repeat after a Restore: a slice of the void branch is summed.",
        Edit(
            Inbound.keep,
            "for key in [key for key in opened if key.lineage != lineage]:",
            "for key in list[Key]():",
        ),
        tests=_KEYS,
    ),
    Mutant(
        "memory-is-given-back-while-it-is-written",
        "A link writes into the payload that gets this memory next.",
        Edit(Inbound.end, "if not payload.missing:", "if True:"),
        tests=_INBOUND,
    ),
    Mutant(
        "an-attempt-that-is-over-keeps-its-pieces",
        "Late pieces of it are written into memory that was given back.",
        Edit(Inbound.end, "del opened[key]", "pass"),
        tests=_INBOUND,
    ),
    Mutant(
        "one-event-of-a-sender-may-hide-another",
        "Two payloads of one name wait for the core, and it gets the bytes of the second.",
        Edit(Inbound._tell, "if key in self._undecided:", "if False:"),
        tests=_INBOUND,
    ),
    Mutant(
        "a-slice-is-cut-from-the-part's-first-element",
        "Every part of a contribution has the bytes of part 0: a chunk at a wrong offset.",
        Edit(
            SliceStream.next,
            "self._encoding.cut(self._first + start, self._first + stop)",
            "self._encoding.cut(start, stop)",
        ),
        tests=_OUTBOUND,
    ),
    Mutant(
        "a-piece-is-skipped-when-another-waits",
        "A result that is still being made loses the piece that was not ready.",
        Edit(
            ResultStream.next,
            "if not self._payload.has(index):\n        return None",
            "if not self._payload.has(index):\n        self._step()\n        return None",
        ),
        tests=_OUTBOUND,
    ),
    Mutant(
        "results-of-a-committed-round-are-not-sent",
        "A peer that lacks a committed result never gets it.",
        Edit(ResultStream.ends_with, "(released or unfinished) and ", ""),
        tests=_OUTBOUND,
    ),
    Mutant(
        "what-waits-of-a-void-branch-is-sent",
        "After a Restore a peer gets slices of the void branch under the same round number.",
        Edit(Outbound.keep, "x.stamp is None or x.stamp.lineage == lineage", "True"),
        tests=_KEYS,
    ),
    Mutant(
        "an-outbox-without-a-limit",
        "A peer that reads nothing costs memory without limit.",
        Edit(Outbound.add, "if len(self._streams) >= STREAMS_MAX:", "if False:"),
        tests=_OUTBOUND,
    ),
    Mutant(
        "a-result-ends-with-its-commit",
        "The bytes of a committed result are gone while another peer asks for them.",
        Edit(ResultKey.ends_with, "released and ", ""),
        tests=_EXCHANGE + _INBOUND,
    ),
    Mutant(
        "a-slice-of-an-earlier-life-is-left-out",
        "A restarted peer does not get the slice that its earlier incarnation contributed.",
        Edit(
            owned_there,
            "layer if slice_.life == inbound.lives.get(term.peer) else None",
            "layer",
        ),
        tests=_EXCHANGE,
    ),
    Mutant(
        "a-part-of-another-size-gets-memory",
        "A peer makes this node hold more than the fragment.",
        Edit(size_of, "fits and others + chunk.elements <= sizes[stamp.fragment]", "fits"),
        tests=_EXCHANGE,
    ),
    Mutant(
        "a-stranger-gets-memory",
        "A peer that is not in the run makes this node hold bytes.",
        Edit(size_of, "peer not in run_state.receivers or ", ""),
        tests=_REFUSALS,
    ),
    Mutant(
        "a-payload-that-the-core-refused-is-kept",
        "The sum contains a slice that the core does not count.",
        Edit(
            DataPlane.decided,
            "self.inbound.decided(event, wanted=wanted)",
            "self.inbound.decided(event, wanted=True)",
        ),
        tests=_EXCHANGE,
    ),
    Mutant(
        "contributions-of-a-void-branch-stay",
        "This node's contribution to a void branch is sent for a round of the same number.",
        Edit(OwnContributions.clear, "self.encoded.clear()", "pass"),
        tests=_KEYS,
    ),
    Mutant(
        "a-sum-of-a-void-branch-goes-on",
        "The sum ends after the Restore, and is taken for that of the same round number.",
        Edit(DataPlane.lineage_changed, "self.reducer.keep(lineage)", "pass"),
        tests=_KEYS,
    ),
    Mutant(
        "a-sum-takes-what-is-not-here-yet",
        "A slice with a missing piece adds the earlier content of its memory.",
        Edit(Sum.terms, "elif each.has(self.next):", "else:\n            pass\n        if True:"),
        tests=_REDUCTION,
    ),
    Mutant(
        "a-sum-cuts-our-slice-at-its-first-element",
        "This node's own slice of every part is that of part 0.",
        Edit(Sum.terms, "each.cut(first + start, first + stop)", "each.cut(start, stop)"),
        tests=_REDUCTION,
    ),
    Mutant(
        "a-sum-of-a-round-that-is-over-goes-on",
        "The sum writes into memory that was given back.",
        Edit(Reducer.drop, "del self._sums[key]", "pass"),
        tests=_REDUCTION,
    ),
    Mutant(
        "a-piece-at-the-last-border-belongs-to-the-next",
        "A part that ends inside a piece sends bytes that were never encoded.",
        Edit(
            Encoding.cut,
            "bisect_left(self._starts, start + 1) - 1",
            "bisect_left(self._starts, start)",
        ),
        tests=_PIECES,
    ),
    Mutant(
        "a-chunk-is-counted-twice",
        "The payload counts as complete while a chunk is missing.",
        Edit(Payload.add, "if not self._digests[index]:", "if True:"),
        tests=_PIECES,
    ),
    Mutant(
        "the-pool-counts-what-it-gave-away",
        "The pool counts memory that it does not have, and keeps none for later.",
        Edit(pieces.Pool.take, "self._bytes -= size", "pass"),
        tests=_PIECES,
    ),
    Mutant(
        "a-cell-at-a-wrong-offset",
        "A cell of a joiner's state is placed one element early.",
        Edit(
            IncomingTransfer.decided,
            "first = ELEMENT_BYTES * start",
            "first = ELEMENT_BYTES * max(start - 1, 0)",
        ),
        tests=_TRANSFER,
    ),
    Mutant(
        "a-cell-of-an-older-cut-is-taken",
        "A joiner's state has cells of two rounds.",
        Edit(IncomingTransfer._lacks, " or chunk.cut_index != self.cut.index", ""),
        tests=_TRANSFER,
    ),
    Mutant(
        "a-cell-of-any-peer-is-taken",
        "Cells are checked that were sent by no donor of the cut.",
        Edit(IncomingTransfer._lacks, " or peer not in self.cut.donors", ""),
        tests=_TRANSFER,
    ),
)

WIRE_MUTANTS = (
    Mutant(
        "a-nonce-repeats-with-the-next-key",
        "The count restarts: two records of one connection have the same number.",
        Edit(
            Seal._nonce,
            "self._secret = _derived",
            "self._count = 0\n        self._secret = _derived",
        ),
        tests=_SEALS,
    ),
    Mutant(
        "a-nonce-repeats",
        "Two records with one key and nonce reveal their difference and the sealing key.",
        Edit(Seal._nonce, "self._count += 1", "self._count += number % 2"),
        tests=_SEALS,
    ),
    Mutant(
        "a-key-is-renewed-one-record-late",
        "A key seals more records than its bound says.",
        Edit(
            Seal._nonce,
            "if number and number % RECORDS_PER_KEY == 0:",
            "if number > 1 and number % RECORDS_PER_KEY == 1:",
        ),
        tests=_SEALS,
    ),
    Mutant(
        "both-directions-have-one-key",
        "A record that this node sent opens as one that it received.",
        Edit(Keys.of, '"accepting"', '"dialling"'),
        tests=_SEALS,
    ),
    Mutant(
        "lengths-are-not-sealed",
        "A changed length before a record makes the reader cut it elsewhere.",
        Edit(Seal.seal, "data, beside, out", "data, None, out"),
        Edit(Seal.decrypt, "sealed, beside, out", "sealed, None, out"),
        tests=_SEALS,
    ),
    Mutant(
        "a-record-is-opened-before-all-of-it-is-here",
        "The last bytes of a record are those of the previous record.",
        Edit(SealedReader._take_record, "if self._filled < len(sealed):", "if not self._filled:"),
        tests=_SEALS,
    ),
    Mutant(
        "a-sealed-record-at-a-wrong-offset",
        "The second record of a payload is written over the first one.",
        Edit(SealedReader._take_record, "start = len(self._place) - self._missing", "start = 0"),
        tests=_SEALS,
    ),
    Mutant(
        "a-ticket-is-good-twice",
        "A second connection gets the keys of the first: nonces repeat.",
        Edit(
            Tickets.take,
            "self._given.pop(control)",
            "self._given[control]\n    self._whose[ticket] = control",
        ),
        tests=_TICKETS,
    ),
    Mutant(
        "a-ticket-outlives-its-connection",
        "A bulk connection is made for a control connection that is closed.",
        Edit(Tickets.void, "del self._whose[keys.ticket]", "pass"),
        tests=_TICKETS,
    ),
    Mutant(
        "a-stranger's-message-may-be-long",
        "A connection without a certificate makes this node hold a megabyte.",
        Edit(
            IncomingMessages.take,
            "if head_bytes > self.head_bytes_max or payload_bytes:",
            "if payload_bytes:",
        ),
        tests=_LINK,
    ),
    Mutant(
        "messages-are-taken-while-the-link-is-paused",
        "Messages are delivered that the owner is not ready for.",
        Edit(IncomingMessages.take, "if self.paused or ", "if "),
        tests=_LINK,
    ),
    Mutant(
        "a-link-that-closes-delivers",
        "A message is delivered from a connection that the owner has forgotten.",
        Edit(Link.buffer_updated, "if self._ending is not None:", "if False:"),
        Edit(Link._parse, "while self.is_open and ", "while "),
        tests=_LINK,
    ),
    Mutant(
        "a-step-is-taken-by-ranks-that-are-gone",
        "New ranks are believed to have obeyed the orders to the lost ones.",
        Edit(StepShell.ranks_lost, "self._at = _Ranks()", "pass"),
        tests=("tests/peers/steps/test_step_shell.py",),
    ),
)

CHECK_MUTANTS = (
    Mutant(
        "false-sums-pass",
        "An owner may send what it wants.",
        Edit(BlockChecks._compare_sum, "if not differing:", "if True:"),
        tests=_CHECKS,
    ),
    Mutant(
        "false-layers-pass",
        "In a gather, an owner may replace the contributions of others.",
        Edit(
            BlockChecks._compare_layers, " if differing else None", " if not contributors else None"
        ),
        tests=_CHECKS,
    ),
    Mutant(
        "blocks-that-were-not-asked-for-are-kept",
        "A peer fills the memory of another one with pieces of no answer.",
        Edit(BlockChecks.blocks_received, "message.offset_bytes != len(data) or ", ""),
        tests=_CHECKS,
    ),
)

NETWORK_MUTANTS = (*PAYLOAD_MUTANTS, *WIRE_MUTANTS, *CHECK_MUTANTS)
