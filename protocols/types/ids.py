"""Identifiers and small records that messages, log entries, events and commands share."""

import hashlib
import math
from typing import Literal, NamedTuple, NewType

from protocols.types.frozen import record

PROTOCOL_VERSION = 21

PeerId = NewType("PeerId", str)
"""`<node name>.<8 hex digits>`: unique and readable. Sums add contributions in the order of ids."""


@record
class Stamp:
    """Names the round, view and attempt of a payload. A payload of no open round is dropped
    (I3)."""

    run: int
    """64 bits, drawn when the run was made."""
    lineage: int
    """64 bits of the hash of the log entry that opened the lineage: two branches of a fork
    differ."""
    view: int
    fragment: int
    round: int
    attempt: int


@record
class PeerInfo:
    """A peer as the log describes it."""

    peer: PeerId
    name: str
    incarnation: int
    """Rises with each restart, so that payloads of an earlier process are never mixed with later
    ones."""
    address: str
    """HOST:PORT that other peers dial; "" if no peer can."""
    slot: int
    """The peer's number among all peers that ever took part; never used twice."""


@record
class Contributor:
    """One contribution of a round: its peer, its amount of work, and exactly which bytes it is."""

    peer: PeerId
    tokens: int
    """Tokens trained for it: the contribution's weight in the mean."""
    steps: int
    manifest: str
    """Name of the encoded contribution, drawn at random: 128 bits as hexadecimal digits."""


@record
class FragmentParts:
    """How a fragment is divided among part owners: part i is [borders[i], borders[i + 1])."""

    owners: tuple[PeerId, ...]
    """One for each part; empty in a gossip run, where each peer sums its pair's whole fragment."""
    borders: tuple[int, ...]
    """In elements, ascending from 0 to the fragment's size."""


@record
class PartBlocks:
    """Some blocks of one part, numbered from its beginning, in ascending order."""

    part: int
    blocks: tuple[int, ...]


@record
class Version:
    """The state of one fragment after a committed round."""

    fragment: int
    round: int
    state_digest: str


TensorKind = Literal["parameter", "buffer", "counter"]
"""A tensor that is trained; a floating buffer, which nodes average; a buffer of integers, of which
all nodes take the values of one node (lowcomm/methods/buffers.py)."""


@record
class TensorSpec:
    """One tensor in the agreed layout; `offset` and the shape count elements."""

    fragment: int
    name: str
    shape: tuple[int, ...]
    offset: int
    kind: TensorKind = "parameter"

    @property
    def elements(self) -> int:
        """The number of elements of the whole tensor."""
        return math.prod(self.shape)


class FrozenTensor(NamedTuple):
    """A tensor of the model that no node trains: each node has it, and none sends it."""

    name: str
    type: str
    """Its name in safetensors files, such as "BF16" (wire/frozen_layout.py)."""
    shape: tuple[int, ...]
    digest: int
    """32 bits of its content; of a rank's part, the summand that the part gives."""


class RoundKey(NamedTuple):
    """A round without its attempt. A tuple, since one is made for each look into a table."""

    fragment: int
    round: int


@record
class StepPayloads:
    """The peers of which a peer holds the payload of one step."""

    step: int
    peers: tuple[PeerId, ...]


@record
class Provider:
    """`holder` has the payload of `peer` for this step: a peer that lacks it asks the holder."""

    step: int
    peer: PeerId
    holder: PeerId


def digest_text(text: str) -> str:
    """32 hex digits of BLAKE2b, for agreement on small texts; the shell makes bulk digests."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
