"""Which act counts next, and why another one does not.

The answer follows from the entries before the act. So a peer can give it before it acknowledges
the act, as well as when it applies it. Must NOT know members or rounds (state/entry_validation.py).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from protocols.acts.orders import NEEDS_A_KEY, operators_after
from protocols.acts.statements import KEY_SHOWN, act_statement
from protocols.messages import log_entries as e
from protocols.types.frozen import record
from protocols.types.signatures import Signatures
from protocols.wire.codec import encode_entry

SIGN_IT = "give --key FILE with the root key of the run (root-key.pem) or the key of an operator"
LATE = "another act or a rollback came between: ask again"


@record
class Authority:
    """All that decides which act counts next. It follows from the entries so far."""

    run: e.Run | None = None
    lineage: int = 0
    number: int = 0
    """That of the last `Steered`; 0: there was none."""
    operators: tuple[str, ...] = ()
    """Public keys of the operators besides the root key, 64 hex digits each."""

    def after(self, entry: e.LogEntry) -> Authority:
        """The authority after one more entry."""
        match entry.body:
            case e.Run() as run:
                return Authority(run, lineage_after(self.lineage, entry))
            case e.Restore():
                return replace(self, lineage=lineage_after(self.lineage, entry))
            case e.Steered() as act:
                operators = operators_after(self.operators, act)
                return replace(self, number=act.number, operators=operators)
            case _:
                return self


def lineage_after(lineage: int, entry: e.LogEntry) -> int:
    """The lineage that a Run or Restore opens after this one."""
    # The hash covers the parent's lineage, so two branches of a fork never share a lineage.
    seed = lineage.to_bytes(8, "big") + encode_entry(entry)
    return int.from_bytes(hashlib.sha256(seed).digest()[:8], "big")


def unproved(authority: Authority, entry: e.Act, signatures: Signatures) -> str:
    """Why this act does not count next; "" if it does. The log cannot tell whether the peer that
    asked had a vote then: its leader does."""
    if isinstance(entry, e.TokenIssued) or authority.run is None:
        return ""
    if isinstance(entry, e.Steered) and (
        entry.number != authority.number + 1 or entry.lineage != authority.lineage
    ):
        return LATE
    return not_permitted(authority, entry, signatures)


def not_permitted(authority: Authority, entry: e.SignedAct, signatures: Signatures) -> str:
    """Why no signature and no rule of the run permits this act; "" if one does."""
    run = authority.run
    assert run is not None, "the caller looks"
    if entry.signature:
        if entry.key and entry.key not in authority.operators:
            return f"the key {entry.key[:KEY_SHOWN]} is no operator of this run: {SIGN_IT}"
        said = act_statement(run.root, entry)
        genuine = signatures.verify(entry.key or run.root, said, entry.signature)
        return "" if genuine else f"the key of that operator has not signed that: {SIGN_IT}"
    if isinstance(entry, e.Steered):
        if entry.what in NEEDS_A_KEY:
            return f"only an operator changes the operators: {SIGN_IT}"
        what, key, voters = "such acts", "run.steering", run.voters_steer
    else:
        what, key, voters = "revocations", "run.revocations", run.voters_revoke
    return "" if voters else f"this run takes {what} of its operator only ({key}): {SIGN_IT}"
