"""A client with the certificate and key of an admitted node, for lies to real daemons.

Must NOT hold tests.
"""

from pathlib import Path

from lowcomm.startup import startup
from peers.security import KeySignatures, TrustStore
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.raft.mandate import VoteStatement
from protocols.types.ids import PeerId
from tests.cluster.running import record
from tests.peers.mesh_node import Node


class Liar(Node):
    """A node with the certificate and key of a node that has ended."""

    def __init__(self, directory: Path) -> None:
        known = record(directory)
        super().__init__(PeerId(known["peer"]), tls=TrustStore.load(directory).open())
        self.incarnation = known["incarnation"] + 1
        wal, saved = startup.open_log(directory)
        wal.close()
        assert saved is not None
        first = saved.entries[0].body
        assert isinstance(first, e.Run)
        self.run, self.term, self.last = first.run, saved.term, saved.entries[-1].index
        self.signatures = KeySignatures(directory)

    def append(self, voters: list[PeerId]) -> m.Append:
        """It leads the next term, in which all others are lost."""
        bodies = [e.Lost(voter, "said a liar") for voter in voters]
        entries = tuple(
            e.LogEntry(self.last + 1 + number, self.term + 1, body)
            for number, body in enumerate(bodies)
        )
        last = (self.last, self.term)
        return m.Append(self.run, self.term + 1, *last, entries, self.last + 2, self.last + 2)

    def leads(self, voters: list[PeerId]) -> m.Leads:
        """All have voted for it, as its own signatures say."""
        term = self.term + 1
        signed = self.signatures.sign(VoteStatement(term, self.peer).content(self.run))
        ballots = tuple(e.Ballot(voter, signed) for voter in (*voters, self.peer))
        elected = e.LogEntry(self.last + 1, term, e.Elected(self.peer, ballots))
        return m.Leads(self.run, term, e.Mandate(0, (elected,)))
