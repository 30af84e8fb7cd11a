"""Names of things that several peers talk about."""

import hashlib
from typing import NamedTuple, NewType

from protocols.types.frozen import record

PROTOCOL_VERSION = 12

PeerId = NewType("PeerId", str)
"""`<node name>.<8 hex digits>`: unique, sortable, readable. Sums run in this order."""


@record
class Stamp:
    """To which round a payload belongs (I3). What belongs to no open round is dropped."""

    run: int
    """64 bits, drawn when the run was made."""
    lineage: int
    """64 bits of the hash of the entry that opened it: two branches of a fork differ."""
    view: int
    fragment: int
    round: int
    attempt: int


@record
class PeerInfo:
    """A peer as the log knows it."""

    peer: PeerId
    name: str
    incarnation: int
    """Rises with each restart: what an earlier life sent must not be mixed with this one's."""
    address: str
    """HOST:PORT that others dial."""
    slot: int
    """Its number among all that ever took part; never used twice."""


@record
class Contributor:
    """One counted contribution: whose, how much work, exactly which bytes."""

    peer: PeerId
    tokens: int
    """Its weight in the mean."""
    steps: int
    manifest: str
    """xxh3-128 of the whole encoded contribution: equal bytes, equal manifest."""


@record
class FragmentParts:
    """How a fragment is divided among part owners: part i is [borders[i], borders[i + 1])."""

    owners: tuple[PeerId, ...]
    """One for each part; none in a gossip run, where each sums all of its pair."""
    borders: tuple[int, ...]
    """Elements, from 0 to the fragment's size."""


@record
class Version:
    """The state of one fragment after a committed round."""

    fragment: int
    round: int
    state_digest: str


@record
class TensorSpec:
    """One parameter in the agreed layout; `offset` and the shape count elements."""

    fragment: int
    name: str
    shape: tuple[int, ...]
    offset: int


class RoundKey(NamedTuple):
    """A round, whatever its attempt. A tuple, since it is made for each look into a table."""

    fragment: int
    round: int


@record
class StepPayloads:
    """Whose payloads of one step somebody holds."""

    step: int
    peers: tuple[PeerId, ...]


@record
class Provider:
    """`holder` has what `peer` sent for this step: who lacks it asks there."""

    step: int
    peer: PeerId
    holder: PeerId


def digest_text(text: str) -> str:
    """32 hex digits for agreement on small things (bulk digests come from the shell)."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
