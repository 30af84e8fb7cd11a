"""The outer states of one simulated node: parameters and versions, outer steps, checkpoints.

Must NOT know which state is the true one (the observer does), nor how a state is transferred
(state_transfer.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from protocols.interface import events as v
from protocols.messages import Kept
from protocols.state import checkpoint_progress
from protocols.types import Stamp, Version, digest_text
from sims.node.node_view import NodeView
from sims.node.ranks import Handed
from sims.node.toy_model import ToyContribution, Value


class OuterStates:
    """The state of each fragment, as the shell holds it."""

    def __init__(self, node: NodeView) -> None:
        training = node.settings.training
        self._gossip = training.gossip
        self._node, self._history = node, node.observer.history
        self.outers: list[Value] = [0] * training.fragments
        """The outer parameters, by fragment."""
        self.versions: list[Version | None] = [None] * training.fragments
        """Versions of the outer parameters as the shell knows them, by fragment; None: not
        known."""
        self.corrupt: dict[int, int] = {}
        """By fragment: the round after which its state was changed by a fault that the core does
        not know of."""

    def found(self, outers: Sequence[Value]) -> tuple[str, ...]:
        """Begin the run with these outer parameters; returns their digests."""
        return tuple(self._set(fragment, 0, outer) for fragment, outer in enumerate(outers))

    def keep_first(self) -> None:
        """Keep the initial state of the run as our first checkpoint."""
        node = self._node
        lineage, versions = node.run_state.lineage, [known for known in self.versions if known]
        for version in versions:
            one = (version.fragment, 0, version.state_digest)
            self._history.state(node.peer, lineage, *one)
        kept = Kept(lineage, tuple(versions), 0, 0)
        node.disk.kept, node.disk.outers = kept, tuple(self.outers)
        node.after(node.settings.compute_s, lambda: node.give(v.Checkpointed(kept)))

    def _set(self, fragment: int, round_: int, outer: Value) -> str:
        """Set a fragment's outer parameter and version; returns the state's digest."""
        node = self._node
        digest = node.settings.digest_of(round_, outer)
        self.outers[fragment], self.versions[fragment] = outer, Version(fragment, round_, digest)
        return digest

    def adopt_kept(self, fragment: int, round_: int) -> None:
        """Load a fragment from the checkpoint, if it has the state after this round."""
        node = self._node
        kept = node.disk.kept
        digest = ""
        if kept is not None and kept.versions[fragment].round == round_:
            digest = self._set(fragment, round_, node.disk.outers[fragment])
            self.corrupt.pop(fragment, None)
        node.give(v.KeptAdopted(fragment, round_, digest))

    def _checkpoint(self) -> None:
        node = self._node
        run_state, versions = node.run_state, [known for known in self.versions if known]
        if len(versions) < len(self.versions) or self.corrupt:
            return
        remaining = checkpoint_progress.remaining_at(run_state, versions[0].round)
        if remaining is None:
            return
        so_far = checkpoint_progress.progress_at(run_state, versions[0].round)
        kept = Kept(run_state.lineage, tuple(versions), *so_far, remaining)
        node.disk.keep_checkpoint(kept, tuple(self.outers))
        node.give(v.Checkpointed(kept))

    def encode(self, fragment: int, round_: int, handed: Handed, first: int) -> None:
        """Encode the ranks' contribution to a round; `first`: the number of its first step."""
        node = self._node
        model, training = node.settings.model, node.settings.training
        if not node.running:
            return  # No peer will get the contribution.
        text = f"{node.peer} {fragment} {first} {handed.last} {round_} {node.now}"
        manifest = digest_text(text)
        gossip = training.gossip
        sent = model.fold(self.outers[fragment] - handed.delta) if gossip else handed.delta
        node.data_plane.store.encoded[fragment, round_] = (manifest, sent)
        values = (handed.delta, model.fold(-handed.moved), sent) if model.exact else (0, 0, 0)
        delta, expected, sent = map(int, values)
        steps, base = (first, handed.last), handed.base_round
        made = ToyContribution(node.peer, fragment, delta, *steps, expected, sent, base)
        self._history.encoded(manifest, made)
        if fragment == 0:
            self._history.samples_of(node, manifest, round_, handed.samples)
        node.give(v.Encoded(fragment, round_, manifest))

    def apply(self, stamp: Stamp, means: list[Value]) -> None:
        """Make the outer step of a round from the means of its parts."""
        node = self._node
        if stamp.lineage != node.run_state.lineage:
            return  # A Restore changed the lineage meanwhile.
        model, fragment = node.settings.model, stamp.fragment
        if model.exact:
            self._history.means(node.peer, stamp, {int(mean) for mean in means})
        before = self.outers[fragment]
        gossip = self._gossip
        after = means[0] if gossip else model.fold(before - means[0])
        self._stepped(stamp, after)

    def skip(self, stamp: Stamp) -> None:
        """Count a committed round, and keep the state."""
        node = self._node
        if stamp.lineage == node.run_state.lineage:
            self._history.skipped(node, stamp)
            self._stepped(stamp, self.outers[stamp.fragment])

    def _stepped(self, stamp: Stamp, outer: Value) -> None:
        node = self._node
        fragment = stamp.fragment
        digest = self._set(fragment, stamp.round, outer)
        if fragment not in self.corrupt:
            self._history.state(node.peer, stamp.lineage, fragment, stamp.round, digest)
        if fragment == 0 and stamp.round % node.disk.checkpoint_every == 0:
            self._checkpoint()
        node.give(v.RoundApplied(stamp, digest))

    def adopt(self, fragment: int, round_: int, value: Value) -> None:
        """Make a state that came from other peers our own."""
        node = self._node
        digest = self._set(fragment, round_, value)
        key = (node.run_state.lineage, fragment, round_)
        self.corrupt.pop(fragment, None)
        if self._history.is_corrupt(*key, digest):
            self.corrupt[fragment] = round_  # The donor's state is corrupt too.
            return
        self._checkpoint()
        self._history.state(node.peer, *key, digest)

    def at(self, fragment: int, round_: int) -> Value | None:
        """The state after this round; None if our state is another one."""
        version = self.versions[fragment]
        return self.outers[fragment] if version and version.round == round_ else None

    def set_back(self, versions: Sequence[Version]) -> None:
        """The run was rolled back: forget states that differ from these versions."""
        for fragment, version in enumerate(versions):
            if self.versions[fragment] != version:
                self.versions[fragment] = None
