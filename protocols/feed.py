"""The leader's log on its way to everybody who reads it.

Must NOT decide what stands in the log (leader.py), nor keep what was sent: readers ask again.
"""

from protocols.commands import Send
from protocols.entries import LogEntry
from protocols.ids import PeerId
from protocols.log import Log
from protocols.messages import Append, Heartbeat

APPENDS_MAX = 8
"""Messages in answer to one ReadLog: a long log must not fill the outbox."""


class Feed:
    """Who has read our log to its end on its present connection."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._readers: set[PeerId] = set()

    def forget(self, peer: PeerId) -> None:
        """Its connection is over or new: it asks for what it lacks."""
        self._readers.discard(peer)

    def read(self, peer: PeerId, index: int) -> list[Send]:
        """The log after `index`; at its end, the peer gets new entries as they come.

        If that is too much at once, a heartbeat tells the peer to ask for the rest.
        """
        sends: list[Send] = []
        self._readers.discard(peer)
        while len(sends) < APPENDS_MAX and (entries := self._log.after(index)):
            sends.append(Send(peer, Append(self._log.run, tuple(entries))))
            index = entries[-1].index
        if index < self._log.last_index:
            sends.append(Send(peer, Heartbeat(self._log.last_index)))
        else:
            self._readers.add(peer)
        return sends

    def publish(self, entry: LogEntry) -> list[Send]:
        """A new entry, to those who have all before it."""
        return [Send(peer, Append(self._log.run, (entry,))) for peer in sorted(self._readers)]
