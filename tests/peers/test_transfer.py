"""A state on its way: each fragment once, and from its donor."""

from peers.transfer import Transfer
from protocols.ids import PeerId, Version

ALPHA, BETA = PeerId("alpha.1"), PeerId("beta.2")


def test_a_transfer_takes_each_fragment_once_and_from_its_donor() -> None:
    versions = (Version(0, 5, ""), Version(1, 5, ""))
    transfer = Transfer(ALPHA, 7, versions, since=0.0)
    assert not transfer.lacks(BETA, 7, 0)
    assert not transfer.lacks(ALPHA, 6, 0)
    assert not transfer.lacks(ALPHA, 7, 2)
    assert transfer.lacks(ALPHA, 7, 0)
    transfer.states[0] = b"12345"
    assert not transfer.lacks(ALPHA, 7, 0)
    assert transfer.lacks(ALPHA, 7, 1)
    assert transfer.adopt(0) == b"12345"
    assert not transfer.lacks(ALPHA, 7, 0)
    assert not transfer.complete
    transfer.states[1] = b"67"
    transfer.adopt(1)
    assert transfer.complete
    assert transfer.size_bytes == 7
