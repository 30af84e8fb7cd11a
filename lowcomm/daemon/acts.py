"""Answers the commands that ask the run for an act: `lowcomm revoke`, `pause`, `token` and others.

Must NOT decide whether it is done: the run does (protocols/peer/certificates.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from lowcomm.config.schema import run_from_json
from lowcomm.daemon.token_list import came_by
from lowcomm.methods import RoundMethod
from peers.ipc import Asked, FindSubject, IssueToken, PrepareAct, Revoke, Steer
from protocols.acts import KICK, SET, described, parsed_setting, subject
from protocols.interface import events as v
from protocols.messages import Revocation, Revoked, Steered, TokenIssued, TokenRevoked
from protocols.state import PREFIX, RunState, cannot_act, decode_token, may_not_ask
from protocols.types import ConfigError, PeerId
from protocols.wire import one_line

if TYPE_CHECKING:
    from protocols.peer import PeerCore

Feed = Callable[[v.Event], None]
"""Gives the core an event."""
NUMBER_SHOWN = 8
"""Hex digits of a token's number that are enough, if no other used token begins with them."""
TEXT_MAX = 200
"""Characters of a text that a person typed."""
IN_THE_CLEAR = "this run has no certificates (node.insecure): there is none to revoke"


def act_json(core: PeerCore, feed: Feed, asked: Asked) -> str:
    """The daemon's answer: {"done": ...}, {"asked": ...}, {"subject": ...} or {"error": ...}. The
    command repeats its question (`again`); only the first one makes the daemon ask the run."""
    try:
        match asked:
            case FindSubject():
                return _subject_json(core, asked)
            case IssueToken():
                return _issue_json(core, feed, asked)
            case Revoke():
                return _revoke_json(core, feed, asked)
            case PrepareAct():
                return _prepare_json(core, asked)
            case Steer():
                return _steer_json(core, feed, asked)
    except ConfigError as error:
        return _error(str(error))


def _revoke_json(core: PeerCore, feed: Feed, asked: Revoke) -> str:
    """If it is done, the answer has "nodes" too: those that came by a revoked token."""
    run_state = core.run_state
    if run_state.run is not None and not run_state.run.root:
        return _error(IN_THE_CLEAR)
    entry = _meant(core, asked)
    if done := _done(run_state, entry):
        came = came_by(run_state, entry.token) if isinstance(entry, TokenRevoked) else []
        return json.dumps({"done": done, "nodes": came})
    if why := _ask_run(core, feed, v.ActAsked(entry, asked.force), again=asked.again):
        return _error(f"{subject(entry)} cannot be revoked: {why}")
    return json.dumps({"asked": subject(entry)})


def _subject_json(core: PeerCore, asked: FindSubject) -> str:
    run = core.run_state.run
    if run is None or not run.root:
        return _error(IN_THE_CLEAR)
    entry = _meant(core, Revoke(**asdict(asked), why="", force=False, again=False))
    return json.dumps({"subject": subject(entry), "keys": operators_of(core.run_state)})


def operators_of(run_state: RunState) -> list[str]:
    """Public keys of the run's operators, the root key first; [] if the run is not encrypted."""
    root = run_state.run.root if run_state.run is not None else ""
    return [root, *run_state.orders.operators] if root else []


def _prepare_json(core: PeerCore, asked: PrepareAct) -> str:
    run_state, of, value = core.run_state, asked.subject, asked.value
    run = run_state.run
    if run is None:
        raise ConfigError("this node has not read the run's log yet: ask again")
    if asked.what == KICK:
        of = _one_named(run_state, of)
        info = run_state.readers.get(PeerId(of))
        value = str(info.incarnation) if info is not None else ""
    elif asked.what == SET:
        value = parsed_setting(of, value)
        method = run_from_json(run.run_json).method
        if of == "run.outer_steps" and isinstance(method, RoundMethod) and method.qsr_alpha:
            raise ConfigError(f"{of} cannot change with run.method.qsr_alpha")
    next_ = {"number": run_state.orders.number + 1, "lineage": f"{run_state.lineage:016x}"}
    return json.dumps({"subject": of, "value": value, **next_, "keys": operators_of(run_state)})


def _steer_json(core: PeerCore, feed: Feed, asked: Steer) -> str:
    try:
        signature, lineage = bytes.fromhex(asked.signature), int(asked.lineage, 16)
    except ValueError:
        raise ConfigError("its signature or lineage is none") from None
    entry = Steered(
        what=asked.what,
        subject=asked.subject,
        value=asked.value,
        number=asked.number,
        lineage=lineage,
        by=core.me.peer,
        why=reason(asked.why),
        signature=signature,
        key=asked.key,
        unix_s=asked.unix_s,
    )
    if core.run_state.orders.acts.get(entry.number) == entry:
        return json.dumps({"done": described(entry)})
    if why := _ask_run(core, feed, v.ActAsked(entry, asked.force), again=asked.again):
        return _error(f"no {subject(entry)}: {why}")
    return json.dumps({"asked": subject(entry)})


def _issue_json(core: PeerCore, feed: Feed, asked: IssueToken) -> str:
    """For a token that this node has signed; "done" is its number."""
    terms = decode_token(asked.word).terms
    entry, issued = TokenIssued(terms), core.run_state.spendings.issued
    if issued.get(terms.number) == entry:
        return json.dumps({"done": terms.number})
    if terms.issuer != core.me.peer:
        return _error("this node has not signed it")
    if why := _ask_run(core, feed, v.ActAsked(entry), again=asked.again):
        return _error(why)
    return json.dumps({"asked": terms.number})


def _ask_run(core: PeerCore, feed: Feed, act: v.ActAsked, *, again: bool) -> str:
    """Ask the run for an act, unless this was done before (`again`). Returns why it is refused, or
    ""."""
    refused = core.certificates.refused.get(subject(act.entry), "") if again else ""
    run_state = core.run_state
    why = cannot_act(run_state, act.entry) or refused
    if not why and not again:
        why = may_not_ask(run_state, act.entry)
    if not why and not again:
        feed(act)
    return why


def reason(text: str) -> str:
    """The reason as the log has it: the command signs it, so both sides must cut it alike."""
    return one_line(text)[:TEXT_MAX]


def _meant(core: PeerCore, asked: Revoke) -> Revocation:
    """The log entry that revokes the named peer or token. Raises ConfigError."""
    me, why = core.me.peer, reason(asked.why)
    try:
        signature = bytes.fromhex(asked.signature)
    except ValueError:
        raise ConfigError("its signature is none") from None
    given = me, why, signature, asked.key, asked.unix_s
    if asked.token:
        return TokenRevoked(_number(core.run_state, asked.what), *given)
    return Revoked(_one_named(core.run_state, asked.what), *given)


def _done(run_state: RunState, entry: Revocation) -> str:
    """The confirmation, once the log holds the revocation; "" before."""
    spent = run_state.spendings
    if isinstance(entry, Revoked):
        shut_out = f"{entry.peer} is shut out: its certificate is revoked"
        return shut_out if entry.peer in spent.revoked else ""
    if entry.token not in spent.revoked_tokens:
        return ""
    came = came_by(run_state, entry.token)
    stay = f"; nodes that it admitted stay: {', '.join(came)}" if came else ""
    return f"the token admits no more nodes{stay}"


def _number(run_state: RunState, what: str) -> str:
    """The number of a token, from the token, its number, or the beginning of the number of one in
    the log. Raises ConfigError."""
    if what.startswith(PREFIX):
        token = decode_token(what)
        if run_state.run is None or token.root.hex() != run_state.run.root:
            raise ConfigError(
                "this is no token of this run: `lowcomm token list DIRECTORY` lists those in "
                "the log"
            )
        return token.number
    if re.fullmatch("[0-9a-f]{32}", what):
        return what
    known = {entry.terms.number for entry in run_state.admitted.values()}
    known |= run_state.spendings.issued.keys()
    found = sorted(number for number in known if number.startswith(what))
    if len(what) < NUMBER_SHOWN or len(found) != 1:
        raise ConfigError(
            f"{one_line(what)[:TEXT_MAX]} names no token of this run, or more than one: "
            "`lowcomm token list DIRECTORY` lists those in the log"
        )
    return found[0]


def _one_named(run_state: RunState, what: str) -> PeerId:
    """The only peer that a person may mean. Raises ConfigError."""
    found = _named(run_state, what)
    if len(found) != 1:
        known = f"{len(found)} peers have the name"
        ids = f": give the id of one, {', '.join(found)}" if found else ""
        known = known if found else "no peer of the run has the name or id"
        raise ConfigError(f"{known} {one_line(what)[:TEXT_MAX]}{ids}")
    return found[0]


def _named(run_state: RunState, name: str) -> list[PeerId]:
    """The peers that a person may mean: the one with this id; or those with this name, preferably
    those that still read the log."""
    known = {**run_state.seats, **run_state.witnesses}
    if name in known or name in run_state.admitted:
        return [PeerId(name)]
    named = [peer for peer, info in known.items() if info.name == name]
    return sorted(set(named) & run_state.readers.keys()) or sorted(named)


def _error(text: str) -> str:
    return json.dumps({"error": text})
