"""Planted bugs in how peers connect and monitor each other, which unit tests catch.

Must NOT run anything (mutants.py).
"""

from protocols.leader.decisions import Leader
from protocols.leader.line_speeds import LinkSpeeds
from protocols.leader.recovery import Donors
from protocols.leader.relay_plan import RelayPlan
from protocols.leader.term import LeadershipTerm
from protocols.links import handshake, missing_links, tunnel_choice
from protocols.links.failure_detector import FailureDetector
from protocols.links.leader_discovery import LeaderDiscovery
from protocols.links.log_relay import LogRelay
from protocols.links.missing_links import MissingLinks
from protocols.participant.training_start import TrainingStart
from protocols.state.log_applier import LogApplier
from sims.mutations.patch import Edit, Mutant
from sims.mutations.units import of

COMPANY_MUTANTS = (
    Mutant(
        "words-of-an-earlier-life-count",
        "A restarted peer counts as having a state that only its earlier incarnation had.",
        Edit(LeadershipTerm.handle_report, "if self._is_of_earlier_life(peer):", "if False:"),
        tests=of("leader/term"),
    ),
    Mutant(
        "words-to-an-earlier-leader-count",
        "A peer that leads again uses reports that it got in its earlier term.",
        Edit(Leader.handle_report, "if term == self.raft.term:", "if True:"),
        tests=of("leader/decisions"),
    ),
    Mutant(
        "an-earlier-life-displaces-a-later-one",
        "A node runs elsewhere; its old process wakes up and cuts the new one off.",
        Edit(handshake.refusal, "newest = max(life, ", "newest = max(0, "),
        tests=of("links/handshake"),
    ),
    Mutant(
        "accusers-that-go-are-forgotten",
        "A donor that two peers found wrong is waited for again: no peer gets a state.",
        Edit(Donors.keep, "if len(accusers) < ACCUSERS:", "if True:"),
        tests=of("leader/joins"),
    ),
    Mutant(
        "silence-begins-before-it-is-watched",
        "A peer that has just become a member is lost at once.",
        Edit(FailureDetector.watch, "self._heard[peer] = now", "pass"),
        tests=of("links/failure_detector"),
    ),
    Mutant(
        "a-stopped-machine-blames-the-others",
        "After a suspend a peer counts all others as lost, and leaves its voters.",
        Edit(
            FailureDetector.lost,
            "if self._is_late(now):",
            "if False:",
        ),
        tests=of("links/failure_detector"),
    ),
    Mutant(
        "silence-is-judged-an-interval-late",
        "A dead peer is kept for longer than the timeout.",
        Edit(
            FailureDetector._look_ahead,
            "+ self._timeout_s(peer, now)",
            "+ self._timeout_s(peer, now) + self.interval_s",
        ),
        tests=of("links/failure_detector"),
    ),
    Mutant(
        "pauses-do-not-count",
        "A peer that pauses for a second again and again is lost at each pause.",
        Edit(FailureDetector.heard, "self._longest[peer] = now - before", "pass"),
        tests=of("links/failure_detector"),
    ),
    Mutant(
        "pauses-are-never-forgotten",
        "After one long pause, losses are noticed late for the rest of the run.",
        Edit(FailureDetector.watch, "if now >= self._turn_at:", "if False:"),
        tests=of("links/failure_detector"),
    ),
    Mutant(
        "our-pause-counts-as-theirs",
        "A process that was stopped expects pauses of all its peers afterwards.",
        Edit(FailureDetector.heard, " and not self._is_late(now)", ""),
        tests=of("links/failure_detector"),
    ),
    Mutant(
        "a-peer-that-was-struck-unnoticed-is-not-told",
        "A peer that was lost while it reconnected follows a leader that sends it nothing.",
        Edit(
            LeadershipTerm.connected,
            "if known is None and peer in self.head.seats:",
            "if False:",
        ),
        tests=of("peer/core"),
    ),
    Mutant(
        "a-report-outlives-its-connection",
        "A member is excluded for a link that it missed once. Its next connection is silent on it.",
        Edit(LeadershipTerm.connected, "self.leader.disconnected(peer)", "pass"),
        tests=of("links/missing_links"),
    ),
    Mutant(
        "counted-without-links",
        "A peer that returns is waited for before it can send its slices.",
        Edit(TrainingStart.watch_links, "not apart or ", "True or "),
        tests=of("participant/member_status"),
    ),
    Mutant(
        "counted-without-the-newest-result",
        "A peer that returns is waited for while it lacks a result.",
        Edit(TrainingStart._keeps_pace, "not lags or ", "True or "),
        tests=of("participant/member_status"),
    ),
    Mutant(
        "a-peer-that-is-back-is-lost-nevertheless",
        "The grace period of a lost connection goes on after the peer has reconnected.",
        Edit(FailureDetector.connected, "self._down.pop(peer, None)", "pass"),
        tests=of("links/failure_detector"),
    ),
    Mutant(
        "a-gap-that-is-closed-stays",
        "A peer with a repaired link stays excluded from every view.",
        Edit(MissingLinks.report, "self.forget(peer)", "pass"),
        tests=of("links/missing_links"),
    ),
    Mutant(
        "leaves-out-more-than-needed",
        "A peer that misses several others stays, and all of these are excluded.",
        Edit(
            missing_links._Search.cover,
            "pending.append((_removed(left, {peer}), chosen | {peer}))",
            "pending[:] = pending or [(_removed(left, {peer}), chosen | {peer})]",
        ),
        tests=of("links/missing_links"),
    ),
    Mutant(
        "leaves-the-elder-out",
        "Of two peers without a link the longer-lived one is excluded.",
        Edit(missing_links._Search.cover, "self._place[each])", "-self._place[each])"),
        tests=of("links/missing_links"),
    ),
    Mutant(
        "two-ends-choose-other-relays",
        "The two ends of a pair wait for each other at different relays.",
        Edit(tunnel_choice.relays, "sorted((one, other))", "(one, other)"),
        tests=of("links/tunnel_choice"),
    ),
    Mutant(
        "all-pairs-speak-through-one-relay",
        "One peer carries the payloads of the whole run.",
        Edit(tunnel_choice.relays, 'f"{pair} {relay}"', 'f"{relay}"'),
        tests=of("links/tunnel_choice"),
    ),
    Mutant(
        "a-slow-line-owns-parts-again-at-once",
        "A line near the limit changes the owners in each view.",
        Edit(LinkSpeeds._owners, "elif speed > USUAL * usual:", "else:"),
        tests=of("leader/line_speeds"),
    ),
    Mutant(
        "the-last-speed-counts",
        "A peer with little to send looks slow, and owns nothing.",
        Edit(LinkSpeeds._owners, "max(self._told[peer]) for", "self._told[peer][-1] for"),
        tests=of("leader/line_speeds"),
    ),
    Mutant(
        "a-line-that-was-never-full-is-slow",
        "A peer that does not know its line speed counts as the slowest.",
        Edit(LinkSpeeds.told, "if line:", "if True:"),
        tests=of("leader/line_speeds"),
    ),
    Mutant(
        "seeks-among-the-same-peers",
        "In a large run the same eight peers are asked forever, and none knows the leader.",
        Edit(LeaderDiscovery._next, "self._asked = first + ASKED_MAX", "self._asked = first"),
        tests=of("links/leader_discovery"),
    ),
    Mutant(
        "seeks-only-among-who-is-connected",
        "Peers that all do not know the leader ask only each other, forever.",
        Edit(LeaderDiscovery.look, "return asks + [", "return asks or ["),
        tests=of("links/leader_discovery"),
    ),
    Mutant(
        "an-earlier-life-is-let-in",
        "A process that was replaced acts as its peer beside the new one.",
        Edit(handshake.refusal, "if newest > hello.incarnation:", "if False:"),
        tests=of("links/handshake"),
    ),
    Mutant(
        "a-peer-of-another-run-is-let-in",
        "Entries of the logs of two runs are mixed.",
        Edit(handshake.refusal, "if hello.run and run and hello.run != run:", "if False:"),
        tests=of("links/handshake"),
    ),
    Mutant(
        "a-relay-loses-what-was-under-way",
        "Entries that were sent on a broken connection never reach its learners.",
        Edit(LogRelay.connected, "self.share[peer] - RESEND", "self.share[peer]"),
        tests=of("links/log_relay"),
    ),
    Mutant(
        "a-learner-believes-its-relay",
        "A relay makes entries of its own, and its learners commit them.",
        Edit(LogApplier.relayed, "not raft.commitment.is_proved(append)", "False"),
        tests=("tests/sims/scenarios/test_false_claims.py",),
    ),
    Mutant(
        "a-relay-that-failed-is-chosen-again",
        "A lying relay holds up its learners for as long as the term lasts.",
        Edit(RelayPlan._changes, "deal(learners, relays, self._failed)", "deal(learners, relays)"),
        tests=of("leader/relay_plan"),
    ),
    Mutant(
        "a-relay-keeps-an-urgent-report",
        "A commit waits for a heartbeat of the relay.",
        Edit(LogRelay._collect, "if isinstance(message, URGENT):", "if False:"),
        tests=of("links/log_relay"),
    ),
)
