"""Checks each log entry against the state before it is applied; every reader does.

An entry that fails would make peers disagree, or raise in the middle of a change. Must NOT change
anything, nor judge whether an entry is a good decision (leader/decisions.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain, pairwise

from protocols.acts.authority import LATE, SIGN_IT, Authority, not_permitted, unproved
from protocols.acts.orders import (
    CONTINUE,
    OPERATOR_ACTS_MAX,
    OPERATORS_MAX,
    PAUSE,
)
from protocols.acts.settings import setting_objection
from protocols.acts.statements import KEY_SHOWN, author, reason_of, subject
from protocols.messages import log_entries as e
from protocols.messages.snapshot import RunStateSnapshot
from protocols.state import step_validation
from protocols.state.parts import undivided
from protocols.state.run_state import RunState
from protocols.state.tokens import (
    ANOTHER,
    SpentTokens,
    operator_of,
    renewed,
    revocation,
)
from protocols.types.ids import FragmentParts, PeerId, PeerInfo, digest_text
from protocols.types.limits import SPENT_MAX
from protocols.types.sample_ranges import is_sound, well_formed
from protocols.types.signatures import Signatures

KICKED_MAX = 64
"""So many removed peers may still read the log."""


def objection(run_state: RunState, body: e.Entry) -> str:
    """Why this entry contradicts the state; "" if it does not."""
    if isinstance(body, e.Run) == (run_state.run is not None):
        return "does not begin with its only Run"
    if isinstance(body, e.Cut | e.Member | e.Witness) and _is_kicked(run_state, body.info):
        return f"lets in {body.info.peer}, which was removed and not started again"
    match body:
        case e.Run():
            return _run(body)
        case e.Elected():
            return ""
        case e.Voter():
            return _voter(run_state, body)
        case e.Restore():
            return _restore(run_state, body)
        case e.Cut():
            return _cut(run_state, body)
        case e.Roots():
            return _roots(run_state, body)
        case e.Member():
            return _member(run_state, body)
        case e.Left(peer=peer) | e.Lost(peer=peer):
            return "" if peer in run_state.readers else f"loses {peer}, which is not there"
        case e.View():
            return _view(run_state, body)
        case e.Attempt():
            return _attempt(run_state, body)
        case e.Commit():
            return _commit(run_state, body)
        case e.Witness(info=info):
            if info.peer in run_state.receivers:
                return f"makes {info.peer} a witness, which trains already"
            return wrong_role(run_state, info.peer, witness=True)
        case e.BranchDropped():
            return ""
        case e.Lease():
            return _lease(run_state, body)
        case e.StepCommit() | e.Halt() | e.Close():
            return step_validation.objection(run_state, body)
        case e.TokenSpent():
            why = refusal(run_state, body)
            return f"lets {body.peer} in, and {why}" if why else ""
        case e.Revoked() | e.TokenRevoked():
            why = cannot_act(run_state, body)
            why = why or unproved(run_state.authority, body, run_state.signatures)
            return f"revokes {subject(body)}, and {why}" if why else ""
        case e.Steered():
            why = unproved(run_state.authority, body, run_state.signatures)
            why = why or cannot_act(run_state, body)
            return f"has the act {subject(body)}, and {why}" if why else ""
        case e.TokenIssued():
            why = cannot_act(run_state, body)
            return f"logs a token of {body.by}, and {why}" if why else ""


def snapshot_objection(image: RunStateSnapshot, reader: RunState) -> str:
    """Why no log leads to this state; "" if one may. `reader`: the state of the peer that gets
    it."""
    signatures = reader.signatures
    run, fragments = image.run, range(len(image.run.fragment_elements))
    if why := _run(run):
        return why
    if reader.run is not None and _fixed(reader.run) != _fixed(run):
        return "is of another run"
    if why := _acts_of(image, signatures):
        return why
    # A snapshot may be older than what its reader has applied, rollbacks among it.
    continues = image.index < reader.index or reader.lineage in (0, image.lineage)
    if not continues and image.restored is None:
        return "changes the lineage without a rollback"
    whole = [granted.cut.versions for granted in image.granted]
    whole += [image.restored.versions] if image.restored is not None else []
    if any([version.fragment for version in versions] != list(fragments) for versions in whole):
        return "does not name every fragment of a state"
    if any(len(granted.cut.roots) not in (0, len(fragments)) for granted in image.granted):
        return "lacks a root"
    if not all(round_.fragment in fragments for round_ in (*image.attempts, *image.commits)):
        return "has a round of no fragment"
    stepwise = run.commit_every_steps > 0
    shape = (0, 1) if stepwise else (len(fragments), len(fragments))
    if any((len(view.parts), len(view.first_round)) != shape for view in image.views):
        return "has a view that does not name every fragment"
    numbers = [view.view for view in image.views]
    if numbers != sorted(set(numbers)) or not all(view.roster for view in image.views):
        return "has views out of order, or one without peers"
    if any(len(branch.rounds) != len(fragments) for branch in image.branches):
        return "has a branch that does not name every fragment"
    return ""


def _fixed(run: e.Run) -> e.Run:
    """The run without the values that may change."""
    return replace(run, peers_min=1, outer_steps=1)


def _acts_of(image: RunStateSnapshot, signatures: Signatures) -> str:
    """Why the acts of a snapshot do not count, or an admission by an operator's token; "" if they
    do. The acts that changed the operators are all there."""
    authority, run, numbers = Authority(image.run), image.run, [x.number for x in image.steered]
    known = tuple(chain(image.revoked, image.revoked_tokens, image.issued))
    indexed = (len(image.steered_indices), len(image.act_indices)) == (len(numbers), len(known))
    indexed &= len(image.spent_indices) == len(image.spent)
    if numbers != sorted(set(numbers)) or not indexed:
        return "has acts out of order"
    paused = [act for act in image.steered if act.what in (PAUSE, CONTINUE)][-1:]
    rounds = 0 if run.commit_every_steps else len(run.fragment_elements)
    if len(image.last_rounds) != (rounds if paused and paused[0].what == PAUSE else 0):
        return "has another pause than its acts"
    acts: list[tuple[int, e.Act | e.TokenSpent]] = []
    for indices, bodies in (
        (image.steered_indices, image.steered),
        (image.act_indices, known),
        (image.spent_indices, image.spent),
    ):
        acts += zip(indices, bodies, strict=True)
    for index, act in sorted(acts, key=lambda each: each[0]):
        if isinstance(act, e.TokenSpent):
            operator = "" if act.renews else operator_of(act.terms.issuer)
            if operator and operator not in authority.operators:
                return f"lets in {act.peer} by a token of no operator"
            continue
        if isinstance(act, e.TokenIssued):
            continue
        if not_permitted(authority, act, signatures):
            return "has an act that no signature proves"
        authority = authority.after(e.LogEntry(index, 0, act))
    return ""


def _run(run: e.Run) -> str:
    sizes = run.fragment_elements
    if not sizes or min(*sizes, run.grain, run.outer_steps, run.peers_min) < 1:
        return "begins with an empty Run"
    return step_validation.of_run(run)


def _is_kicked(run_state: RunState, info: PeerInfo) -> bool:
    return run_state.orders.kick_of(info.peer, info.incarnation) is not None


def _voter(run_state: RunState, body: e.Voter) -> str:
    peer = body.peer
    if peer not in run_state.readers or body.votes == (peer in run_state.voters):
        return f"changes nothing about the vote of {peer}"
    key = run_state.key_of(peer) if body.votes else ""
    return "" if body.key == key else f"names another key of {peer} than the log admits"


def _member(run_state: RunState, body: e.Member) -> str:
    info = body.info
    if why := wrong_role(run_state, info.peer, witness=False):
        return why
    if why := unproved_state(run_state, info.peer, body.state):
        return f"makes {info.peer} a member, which {why}"
    if info.peer in run_state.joiners or not run_state.members:
        return ""
    may_return = run_state.may_return(info.peer, info.incarnation)
    return "" if may_return else f"makes {info.peer} a member without a cut"


def name_of_state(digests: Iterable[str]) -> str:
    """The name of a state: of the roots of a cut, or of the digests of restored versions; "" if
    there are none."""
    words = " ".join(digests)
    return digest_text(words) if words else ""


def unproved_state(run_state: RunState, peer: PeerId, state: str) -> str:
    """Why a peer that names this state may not become a member of an encrypted run; "" if it may.
    The founder makes the first state."""
    if run_state.run is None or not run_state.run.root or not run_state.seats:
        return ""
    _, cut = run_state.cut_of(peer)
    restored = run_state.restored.versions if run_state.restored is not None else ()
    digests = cut.roots if cut is not None else (version.state_digest for version in restored)
    right = name_of_state(digests)
    return "" if right and state == right else "names another state than the log"


def _restore(run_state: RunState, restore: e.Restore) -> str:
    if [version.fragment for version in restore.versions] != list(range(run_state.fragments)):
        return "has a Restore that does not name every fragment"
    if bool(restore.fork) != bool(restore.voters) or (restore.lonely and not restore.fork):
        return "has a Restore that names voters without a fork, or a fork without voters"
    return "" if is_sound(restore.remaining) else "has a Restore with an invalid set of samples"


def _cut(run_state: RunState, cut: e.Cut) -> str:
    donors = set(cut.donors)
    if not donors or len(donors) < len(cut.donors) or cut.roots:
        return "has a Cut without donors, with one twice, or with roots"
    if cut.info.peer in donors or not donors <= run_state.members.keys():
        return f"names {', '.join(cut.donors)} as donors, which are not all other members"
    if why := wrong_role(run_state, cut.info.peer, witness=False):
        return why
    if not run_state.has_room(cut.info.peer):
        return f"lets in {cut.info.peer}, but the run is full"
    named = [(version.fragment, version.round) for version in cut.versions]
    committed = [(f, run_state.cut_round(f)) for f in range(run_state.fragments)]
    return "" if named == committed else f"cuts at {named}, but {committed} are committed"


def _roots(run_state: RunState, roots: e.Roots) -> str:
    index, cut = run_state.cuts.get(roots.peer, (0, None))
    if cut is None or index != roots.index or cut.roots:
        return f"has roots, but no cut of {roots.peer} needs any"
    return "" if len(roots.roots) == run_state.fragments and all(roots.roots) else "lacks a root"


def _view(run_state: RunState, view: e.View) -> str:
    newest = run_state.views[-1].view if run_state.views else 0
    if view.view != newest + 1:
        return f"has View {view.view} after {newest}"
    if not _sorted_among(view.roster, run_state.members.keys()):
        return f"has View {view.view} with a roster that is empty, unsorted or of non-members"
    if run_state.stepwise:
        return step_validation.of_view(run_state, view)
    if len(view.parts) != run_state.fragments or len(view.first_round) != run_state.fragments:
        return f"has View {view.view} that does not name every fragment"
    for fragment, (parts, first) in enumerate(zip(view.parts, view.first_round, strict=True)):
        if not run_state.committed(fragment) < first <= run_state.committed(fragment) + 2:
            return f"has View {view.view} from round {first} on"
        if not _parts(run_state, fragment, parts) or not set(parts.owners) <= set(view.roster):
            return f"has View {view.view} with impossible parts"
    return ""


def _parts(run_state: RunState, fragment: int, parts: FragmentParts) -> bool:
    assert run_state.run is not None
    borders = parts.borders
    if run_state.run.gossip:
        return parts == undivided(run_state.run.fragment_elements[fragment])
    if not parts.owners or len(borders) != len(parts.owners) + 1:
        return False
    ends = (borders[0], borders[-1])
    rises = all(start <= stop for start, stop in pairwise(borders))
    return rises and ends == (0, run_state.run.fragment_elements[fragment])


def _attempt(run_state: RunState, attempt: e.Attempt) -> str:
    what = f"has attempt {attempt.attempt} at round {attempt.round}"
    plan = run_state.open_plan(attempt.fragment)
    if plan is None or attempt.round != plan.stamp.round:
        return f"{what}, which is not open"
    if (attempt.view, attempt.attempt) != (plan.stamp.view, plan.stamp.attempt + 1):
        return f"{what} after {plan.stamp}"
    if not _sorted_among(attempt.roster, plan.roster):
        return f"{what} with a roster that is empty, unsorted or larger than before"
    owners = attempt.owners
    if len(owners) != len(plan.parts.owners) or not set(owners) <= set(attempt.roster):
        return f"{what} with impossible owners"
    return ""


def _commit(run_state: RunState, commit: e.Commit) -> str:
    plan = run_state.open_plan(commit.fragment)
    if plan is None or commit.round != plan.stamp.round:
        return f"commits round {commit.round} out of order"
    if (commit.view, commit.attempt) != (plan.stamp.view, plan.stamp.attempt):
        return f"commits another attempt of round {commit.round} than the latest"
    if tuple(term.peer for term in commit.contributors) != plan.roster:
        return f"commits round {commit.round} with another roster than the attempt's"
    if commit.borders != plan.parts.borders or not commit.result_digest:
        return f"commits round {commit.round} with another result than the attempt's"
    named = len(commit.samples) in (0, len(commit.contributors) if commit.fragment == 0 else 0)
    if not named or not all(map(well_formed, commit.samples)):
        return f"commits round {commit.round} with samples that do not fit its contributors"
    return ""


def _lease(run_state: RunState, lease: e.Lease) -> str:
    peers = [grant.peer for grant in lease.grants]
    if not peers or len(set(peers)) < len(peers) or not set(peers) <= run_state.members.keys():
        return "leases to no peer, to one peer twice or to a peer that is no member"
    return run_state.ledger.objection(lease.grants)


def _sorted_among(roster: Sequence[PeerId], allowed: Collection[PeerId]) -> bool:
    rises = all(one < other for one, other in pairwise(roster))
    return bool(roster) and rises and set(roster) <= set(allowed)


def wrong_role(run_state: RunState, peer: PeerId, *, witness: bool) -> str:
    """Why the peer may not be a witness (or a member) of an encrypted run; "" if it may."""
    if run_state.run is None or not run_state.run.root:
        return ""
    known = run_state.admitted.get(peer)
    if known is None:
        return f"lets in {peer}, which no token admitted"
    if known.terms.witness == witness:
        return ""
    role, other = ("witness", "member") if witness else ("member", "witness")
    return f"makes {peer} a {role}, but its token admitted it as a {other}"


def refusal(run_state: RunState, entry: e.TokenSpent) -> str:
    """Why the log cannot spend this token, as a line for the joiner; "" if it can."""
    peer, spent = entry.peer, run_state.spendings
    if peer in spent.revoked:
        return revocation(spent.revoked[peer])
    if peer in spent.peers or peer in run_state.seats or peer in run_state.witnesses:
        return f"{peer} is another peer of this run: start with an empty node directory"
    if why := _renewal(spent, entry) if entry.renews else _token(run_state, entry.terms):
        return why
    if spent.uses_left(entry.terms) < 1:
        return f"this token was good for {entry.terms.uses} and is used up: {ANOTHER}"
    return ""


def _token(run_state: RunState, terms: e.TokenTerms) -> str:
    """Why a token does not count, however often it was used; "" if it does."""
    spent, run, issuer = run_state.spendings, run_state.run, terms.issuer
    if terms.number in spent.revoked_tokens:
        gone = spent.revoked_tokens[terms.number]
        return f"this token was revoked by {author(gone)}{reason_of(gone)}: {ANOTHER}"
    if terms.expires <= spent.forgotten:
        return f"this token is too old: {ANOTHER}"
    if not issuer:
        return ""
    if operator := operator_of(terms.issuer):
        if operator in run_state.orders.operators:
            return ""
        shown = operator[:KEY_SHOWN]
        return (
            f"the operator {shown} issued this token, and is none of the run (any more): {ANOTHER}"
        )
    if run is not None and not run.voters_issue:
        return (
            f"{issuer} issued this token, but tokens of this run come from its operator only: ask "
            "for one from the machine that has the run's root key or an operator's"
        )
    # A former voter may be in the wrong hands, with its key: so tokens that the log does not have
    # end with its vote.
    logged = spent.issued.get(terms.number)
    counts = issuer in run_state.voters or (logged is not None and logged.terms == terms)
    if issuer in spent.revoked or issuer not in spent.peers or not counts:
        return f"{issuer} issued this token, but does not vote in the run any more: {ANOTHER}"
    return ""


def _renewal(spent: SpentTokens, entry: e.TokenSpent) -> str:
    """Why an admitted peer's node may not become this other peer; "" if it may."""
    earlier = entry.terms.issuer
    if earlier in spent.revoked:
        return revocation(spent.revoked[earlier])
    known = spent.peers.get(earlier)
    if known is None or known.key != entry.key or renewed(known) != entry.terms:
        return "the certificate that this node had is none of this run: join with a token"
    return ""


def cannot_act(run_state: RunState, entry: e.Act) -> str:
    """Why the log cannot have this entry of a person; "" if it can."""
    spent = run_state.spendings
    if isinstance(entry, e.TokenIssued):
        if entry.terms.number in spent.issued:
            return "it is in the log already"
        # A token that would not count by itself is not made better.
        if not entry.by or operator_of(entry.terms.issuer):
            return "it counts by the root key or an operator's, which signed it"
        return _token(run_state, entry.terms)
    if isinstance(entry, e.Steered):
        return _cannot_steer(run_state, entry)
    known = spent.revoked if isinstance(entry, e.Revoked) else spent.revoked_tokens
    if subject(entry) in known:
        return "it is revoked already"
    if len(known) >= SPENT_MAX:
        return f"{SPENT_MAX} are revoked already: begin another run"
    if run_state.voters == (subject(entry),):
        return "it is the only voter: without it nothing could be decided"
    return ""


def _cannot_steer(run_state: RunState, act: e.Steered) -> str:
    """Why the run cannot be steered so now; "" if it can."""
    orders, of = run_state.orders, act.subject
    if (act.number, act.lineage) != (orders.number + 1, run_state.lineage):
        return LATE
    if run_state.is_over and not _prolongs(run_state, act):
        return "the run is finished"
    match act.what:
        case "pause":
            paused = orders.paused
            return f"it is paused already, by {author(paused)}" if paused is not None else ""
        case "continue":
            return "" if orders.paused is not None else "the run is not paused"
        case "kick":
            return _cannot_kick(run_state, act)
        case "set":
            return setting_objection(of, act.value) or _cannot_set(run_state, of, act.value)
        case "add operator" | "remove operator":
            return _cannot_change_operators(run_state, act)
        case _:
            return f"there is no act {act.what}"


def _prolongs(run_state: RunState, act: e.Steered) -> bool:
    """Does the act follow at once a Restore to the end of the run (and its Elected)? Then no peer
    has seen the end in this lineage and left. `lowcomm resume --set` writes both."""
    sets = act.what == "set" and act.subject == "run.outer_steps"
    restored = run_state.restored is not None and bool(run_state.restored.fork)
    return sets and restored and run_state.index <= run_state.restored_index + 1


def _cannot_kick(run_state: RunState, act: e.Steered) -> str:
    readers, peer = run_state.readers, PeerId(act.subject)
    info = readers.get(peer)
    if info is None or act.value != str(info.incarnation):
        return f"{peer} is not in the run, or was started again since: ask again"
    if run_state.kick_of(peer) is not None:
        return f"{peer} is removed already"
    if run_state.voters == (peer,):
        return "it is the only voter: without it nothing could be decided"
    if run_state.members.keys() == {peer}:
        return "it is the only node that trains: stop it on its own machine"
    going = sum(run_state.kick_of(peer) is not None for peer in readers)
    return "too many removed nodes are still there" if going >= KICKED_MAX else ""


def _cannot_set(run_state: RunState, key: str, text: str) -> str:
    if key == "run.peers_min" and (run_state.views or run_state.restored is not None):
        return "rounds have begun, and nothing waits for run.peers_min any more"
    if key != "run.outer_steps":
        return ""
    if run_state.stepwise:
        return "run.outer_steps cannot change with a per-step method: steps beyond it may be made"
    open_round = 1 + max(map(run_state.committed, range(run_state.fragments)))
    if int(text) < open_round:
        return f"run.outer_steps must be at least {open_round}, the round under way"
    return ""


def _cannot_change_operators(run_state: RunState, act: e.Steered) -> str:
    orders, key, run = run_state.orders, act.subject, run_state.run
    if run is None or not run.root:
        return "this run has no keys (node.insecure)"
    if orders.num_operator_acts >= OPERATOR_ACTS_MAX:
        return f"the operators were changed {OPERATOR_ACTS_MAX} times: begin another run"
    if act.what == "remove operator":
        return "" if key in orders.operators else "there is no such operator besides the root key"
    if len(key) != len(run.root) or key.strip("0123456789abcdef"):
        return "an operator's key has 64 hex digits"
    if key in (run.root, *orders.operators):
        return "it is an operator already"
    full = len(orders.operators) >= OPERATORS_MAX
    return f"there are {OPERATORS_MAX} operators already: remove one first" if full else ""


def may_not_ask(run_state: RunState, entry: e.Act) -> str:
    """Why the peer `entry.by` may not ask for this act now; "" if it may. The log does not check
    it: two voters may ask for each other's revocation, and the first entry takes a vote."""
    if why := unproved(run_state.authority, entry, run_state.signatures):
        return why
    if isinstance(entry, e.TokenIssued) or entry.signature or entry.by in run_state.voters:
        return ""
    return f"{entry.by} does not vote, and no operator has signed that: {SIGN_IT}"
