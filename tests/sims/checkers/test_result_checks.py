"""The checker of lying owners: which commits, complaints and losses are violations."""

from typing import cast

from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.types import Contributor, PeerId, Stamp
from sims.checkers.result_checks import Owners
from sims.node.node import Node

LIAR, HONEST = PeerId("liar.0"), PeerId("honest.0")
STAMP = Stamp(1, 7, 1, 0, 3, 0)


class Named:
    """All that the checker reads of a node."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer


def node(peer: PeerId) -> Node:
    return cast(Node, Named(peer))


def commit(attempt: int) -> e.Commit:
    terms = (Contributor(HONEST, 1, 1, "a"),)
    return e.Commit(1, 0, 3, attempt, terms, (0, 1), "d", "")


def test_a_falsified_result_must_not_be_committed() -> None:
    found: list[str] = []
    checker = Owners(found.append)
    checker.falsified(node(LIAR), STAMP)
    checker.committed(7, commit(1))
    checker.committed(8, commit(0))
    assert found == []
    checker.committed(7, commit(0))
    assert len(found) == 1
    assert LIAR in found[0]


def test_honest_peers_must_not_be_blamed() -> None:
    found: list[str] = []
    checker = Owners(found.append)
    checker.falsified(node(LIAR), None)
    checker.complained(node(HONEST), m.WrongResult(STAMP, 0, (LIAR, HONEST)))
    checker.struck(e.Lost(LIAR, "two peers found that it falsified results"))
    checker.struck(e.Lost(HONEST, "is silent"))
    assert found == []
    checker.complained(node(LIAR), m.WrongResult(STAMP, 0, (HONEST,)))
    checker.struck(e.Lost(HONEST, "two peers found that it falsified results"))
    assert len(found) == 2
