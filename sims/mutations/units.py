"""Planted bugs in single modules of the core, which the unit tests of these modules catch.

In a sweep most of them cost time or samples without breaking a checker's condition. Must NOT run
anything (mutants.py).
"""

from protocols.leader.sample_leases import SampleLeases
from protocols.leader.step_views import StepViews
from protocols.rounds import fragment_schedule, reductions
from protocols.rounds.fragment_rounds import FragmentRounds
from protocols.rounds.retries import ResultFetch, ResultRequest, StallReport
from protocols.state import gossip_pairs, parts, transitions
from protocols.state.sample_ledger import SampleLedger
from protocols.steps.payload_fetch import PayloadFetch
from protocols.transfer.catch_up import CatchUp
from protocols.transfer.donor import StateDonor
from protocols.transfer.receiver import StateReceiver
from protocols.transfer.state_roots import RootAgreement
from protocols.types import sample_ranges
from sims.mutations.patch import Edit, Mutant


def of(*names: str) -> tuple[str, ...]:
    """Paths of the unit tests of these modules of protocols: "room/module" each."""
    places = (name.split("/") for name in names)
    return tuple(f"tests/protocols/{room}/test_{module}.py" for room, module in places)


SAMPLE_MUTANTS = (
    Mutant(
        "ranges-that-touch-stay-apart",
        "Equal sets become unequal tuples: the ledgers of two peers differ.",
        Edit(sample_ranges.merged, "item.start <= made[-1].stop", "item.start < made[-1].stop"),
        tests=of("types/sample_ranges"),
    ),
    Mutant(
        "the-rest-of-a-range-begins-too-early",
        "Subtracted samples are in the difference again: samples are trained twice.",
        Edit(
            sample_ranges.subtract,
            "made.append(SampleRange(start, item.stop))",
            "made.append(item)",
        ),
        tests=of("types/sample_ranges"),
    ),
    Mutant(
        "a-grant-is-one-sample-too-long",
        "Two peers hold the sample at the border of their leases.",
        Edit(sample_ranges.first, "item.start + wanted)", "item.start + wanted + 1)"),
        tests=of("types/sample_ranges", "leader/sample_leases"),
    ),
    Mutant(
        "leases-what-is-not-free",
        "A leader's mistake gives two peers the same samples, and no peer objects.",
        Edit(SampleLedger.objection, "if not contains(free, old):", "if False:"),
        tests=of("state/sample_ledger"),
    ),
    Mutant(
        "leases-one-range-twice-in-an-entry",
        "Two peers of one entry hold the same samples.",
        Edit(SampleLedger.objection, "free = subtract(free, old)", "pass"),
        tests=of("state/sample_ledger"),
    ),
    Mutant(
        "leases-new-samples-with-a-gap",
        "Samples below the frontier belong to no peer, and are never trained.",
        Edit(SampleLedger.objection, 'return "" if whole else', 'return "" if True else'),
        tests=of("state/sample_ledger"),
    ),
    Mutant(
        "a-life-that-comes-back-has-no-samples",
        "A peer that was disconnected for a moment trains samples leased to others.",
        Edit(SampleLedger.came, "if gone.held.incarnation == info.incarnation:", "if False:"),
        tests=of("state/sample_ledger"),
    ),
    Mutant(
        "an-earlier-life-has-no-claims",
        "A contribution of an earlier incarnation is refused, though the log counts it.",
        Edit(SampleLedger.claims, "if gone.held.peer == peer:", "if False:"),
        tests=of("state/sample_ledger"),
    ),
    Mutant(
        "a-void-round-gives-samples-to-a-later-life",
        "An incarnation that came after the view trains samples of the earlier one.",
        Edit(
            SampleLedger.take_back,
            "if held is not None and held.came < view:",
            "if held is not None:",
        ),
        tests=of("state/sample_ledger"),
    ),
    Mutant(
        "a-restore-leaves-leases",
        "Samples that are free after the cut are still held by their old owners too.",
        Edit(SampleLedger.restore, "self.held, self.gone = {}, []", "self.gone = []"),
        tests=of("state/sample_ledger"),
    ),
    Mutant(
        "a-claim-may-be-torn-to-shreds",
        "The ledger has more ranges than a snapshot can hold: no peer can read the snapshot.",
        Edit(
            SampleLedger.may_count,
            "left <= CLAIM_RANGES_MAX and whole <= RANGES_LEFT_MAX",
            "whole <= RANGES_LEFT_MAX",
        ),
        tests=of("state/sample_ledger"),
    ),
    Mutant(
        "two-peers-get-the-same-new-samples",
        "All grants of an entry begin at the frontier.",
        Edit(SampleLeases.next_entry, "frontier += rest", "pass"),
        tests=of("leader/sample_leases"),
    ),
    Mutant(
        "two-peers-get-the-same-free-samples",
        "Samples of a departed peer are granted to every peer that lacks samples.",
        Edit(SampleLeases.next_entry, "free = subtract(free, samples)", "pass"),
        tests=of("leader/sample_leases"),
    ),
    Mutant(
        "carried-samples-are-a-reserve",
        "A peer that carries uncounted work over rounds runs out of samples to draw.",
        Edit(SampleLeases._lack, " - wants.carried", ""),
        tests=of("leader/sample_leases"),
    ),
)

TRANSFER_MUTANTS = (
    Mutant(
        "one-word-is-enough-for-a-root",
        "A single donor with damaged memory names the root that all cells are compared with.",
        Edit(RootAgreement._agreed, "min(WORDS_NEEDED, len(donors))", "min(1, len(donors))"),
        tests=of("transfer/state_roots"),
    ),
    Mutant(
        "words-of-an-earlier-cut-count",
        "Roots of a state that is rounds behind become those of the new cut.",
        Edit(RootAgreement.add_roots, " and index == report.index", ""),
        tests=of("transfer/state_roots"),
    ),
    Mutant(
        "gives-a-state-that-has-moved-on",
        "A joiner gets a later round than its cut names.",
        Edit(StateDonor._copy, "if held > version.round:", "if False:"),
        tests=of("transfer/donor"),
    ),
    Mutant(
        "copies-before-the-last-round-is-applied",
        "A joiner gets an earlier round than its cut names.",
        Edit(StateDonor._copy, " or held < version.round", ""),
        tests=of("transfer/donor"),
    ),
    Mutant(
        "a-copy-is-kept-for-ever",
        "A joiner that never asks again costs a donor the memory of a whole state.",
        Edit(StateDonor.advance, "if now >= owed.until:", "if False:"),
        tests=of("transfer/donor"),
    ),
    Mutant(
        "gives-cells-beyond-the-last-one",
        "The shell is asked to send bytes that are no part of the state.",
        Edit(
            StateDonor._answer,
            "for span in message.cells if _is_in(span, owed)",
            "for span in message.cells",
        ),
        tests=of("transfer/donor"),
    ),
    Mutant(
        "believes-leaves-without-their-root",
        "Cells of honest donors are compared with the hash tree of a lying donor.",
        Edit(
            StateReceiver.leaves_received,
            "if hashlib.sha256(leaves).hexdigest() != self.roots[page.fragment]:",
            "if False:",
        ),
        tests=of("transfer/receiver"),
    ),
    Mutant(
        "a-page-of-leaves-counts-twice",
        "A page that is received again shifts all later leaves to other cells.",
        Edit(
            StateReceiver.leaves_received,
            " or page.first * LEAF_BYTES != len(tree.digests)",
            "",
        ),
        tests=of("transfer/receiver"),
    ),
    Mutant(
        "asks-a-donor-for-more-than-a-window",
        "One slow donor owes most of the state while the other donors are idle.",
        Edit(StateReceiver._ask_cells, "min(WINDOW_CELLS - len(asked), ", "min(WINDOW_CELLS, "),
        tests=of("transfer/receiver"),
    ),
    Mutant(
        "a-cell-of-another-cut-arrives",
        "A fragment of an earlier cut is adopted as that of the present one.",
        Edit(CatchUp.expected, " or transfer.index != cut_index", ""),
        tests=of("transfer/catch_up"),
    ),
)

ROUND_MUTANTS = (
    Mutant(
        "ranks-need-no-steps-once-their-node-needs-none",
        "New ranks get the anchor's last result without samples, need a step, and fail.",
        Edit(FragmentRounds.needs_no_steps, "self.work.base >=", "self.version >="),
        tests=of("rounds/fragment_rounds"),
    ),
    Mutant(
        "a-border-inside-a-codec's-grain",
        "Two owners each decode half of the elements that are encoded together.",
        Edit(parts.cut_parts, "grains * i // count * grain", "elements * i // count"),
        tests=of("state/parts"),
    ),
    Mutant(
        "an-owner-that-is-there-loses-its-part",
        "Slices that were already sent are sent again, to another owner.",
        Edit(parts.replace_owners, "if owner in load:", "if False:"),
        tests=of("state/parts"),
    ),
    Mutant(
        "a-sum-is-begun-again-and-again",
        "The owner sums the same slices at each event.",
        Edit(
            reductions.reduce,
            'if terms and done.once(me, plan.stamp.round, "reduce", plan.stamp, part):',
            "if terms:",
        ),
        tests=of("rounds/reductions"),
    ),
    Mutant(
        "the-anchor-comes-first",
        "Samples are accounted for before all fragments of the round are contributed.",
        Edit(
            fragment_schedule.next_fragment,
            "rounds[f].next_round, f == 0, f)",
            "rounds[f].next_round, f)",
        ),
        tests=of("rounds/fragment_schedule"),
    ),
    Mutant(
        "the-same-pairs-meet-again",
        "Two halves of a gossip run never exchange.",
        Edit(
            gossip_pairs._met,
            "circle = [first, *others[turn:], *others[:turn]]",
            "circle = [first, *others]",
        ),
        tests=of("state/gossip_pairs"),
    ),
    Mutant(
        "a-result-is-asked-for-at-each-event",
        "A result that is under way is requested hundreds of times.",
        Edit(
            ResultFetch.fetch,
            "self.at = now + FETCH_RETRY_S\n    if over",
            "self.at = now\n    if over",
        ),
        tests=of("rounds/retries"),
    ),
    Mutant(
        "a-result-that-was-passed-is-waited-for",
        "A peer waits for a result that was sent before it could get it.",
        Edit(ResultFetch.fetch, "now if passed or self._asks_now else ", ""),
        tests=of("rounds/retries"),
    ),
    Mutant(
        "released-results-are-asked-for-again",
        "A peer asks seven times for a result that no peer keeps any more.",
        Edit(ResultFetch.fetch, "if over and self.tries >= len(holders):", "if False:"),
        tests=of("rounds/retries"),
    ),
    Mutant(
        "trusts-a-whole-result-that-is-another",
        "A complete result with other bytes stays in place of the committed one.",
        Edit(ResultFetch.fetch, "held.drop_results(commit.round)", "pass"),
        tests=of("rounds/retries"),
    ),
    Mutant(
        "asks-owners-that-are-gone",
        "Requests to lost owners are dropped, and no connected owner is asked.",
        Edit(ResultRequest.ask, "if owners[part] in connected]", "]"),
        tests=of("rounds/retries"),
    ),
    Mutant(
        "a-new-attempt-inherits-the-old-one's-age",
        "A new attempt counts as slow, and healthy peers are excluded.",
        Edit(
            StallReport.is_slow,
            "self.at = now + self.after_s if attempt else NEVER",
            "self.at = min(self.at, now + self.after_s) if attempt else NEVER",
        ),
        tests=of("rounds/retries"),
    ),
    Mutant(
        "a-differing-digest-waits-for-a-commit",
        "In an even split one half counts as differing, though there is no majority.",
        Edit(StepViews._majority, "if 2 * count > len(states)", "if 2 * count >= len(states)"),
        tests=of("leader/step_views"),
    ),
    Mutant(
        "a-loss-is-forgiven-to-who-is-not-there",
        "A peer that fails in each round is as good a voter as any.",
        Edit(transitions.forgiven, "count - (peer in counted)", "count - 1"),
        tests=of("state/transitions"),
    ),
    Mutant(
        "gives-steps-of-another-branch",
        "Payloads of a lineage that a Restore ended complete steps of the new one.",
        Edit(
            PayloadFetch.give,
            "if message.lineage != self._run_state.lineage:",
            "if False:",
        ),
        tests=of("steps/payload_fetch"),
    ),
)

UNIT_MUTANTS = (*SAMPLE_MUTANTS, *TRANSFER_MUTANTS, *ROUND_MUTANTS)
