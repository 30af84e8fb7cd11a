"""What a daemon answers to `lowcomm revoke`. What a revocation means is in protocols/.

Must NOT decide: the run does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from protocols import events as v
from protocols.ids import PeerId
from protocols.membership import Membership
from protocols.tokens import cannot_revoke
from protocols.wire import one_line

if TYPE_CHECKING:
    from lowcomm.daemon import Daemon
    from peers.bus import Revoke

TEXT_MAX = 200
"""Of what a person typed."""


def revoke_json(daemon: Daemon, asked: Revoke) -> str:
    """The daemon's answer; the first one has it ask the run."""
    members = daemon.core.members
    if daemon.config.node.insecure:
        return _error("this run has no certificates (node.insecure): there is none to revoke")
    found = _named(members, asked.peer)
    if len(found) != 1:
        what = f"{len(found)} peers have the name" if found else "nobody in the run has the name"
        ids = f": say which one, {', '.join(found)}" if found else " or the id"
        return _error(f"{what} {one_line(asked.peer)[:TEXT_MAX]}{ids}")
    (peer,) = found
    entry = members.spendings.revoked.get(peer)
    if entry is not None:
        return json.dumps({"done": f"{peer} is shut out: its certificate is revoked"})
    if why := cannot_revoke(members, peer):
        return _error(f"{peer} cannot be shut out: {why}")
    daemon.driver.feed(v.RevokeAsked(peer, one_line(asked.why)[:TEXT_MAX]))
    return json.dumps({"asked": peer})


def _named(members: Membership, name: str) -> list[PeerId]:
    """Whom a person may mean: an id that is known, or whoever has that name and is in."""
    known = {**members.seats, **members.witnesses}
    if name in known or name in members.spendings.peers:
        return [PeerId(name)]
    named = [peer for peer, info in known.items() if info.name == name]
    return sorted(set(named) & members.readers.keys()) or sorted(named)


def _error(text: str) -> str:
    return json.dumps({"error": text})
