"""Methods of rounds: each node trains by itself, in virtual time, and meets the others in rounds.

Exchanges use the daemons' own arithmetic (sims/lockstep/exchange.py). Must NOT evaluate, or access
files.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from benchmarks.comparing.groups import Feed, Pace
from benchmarks.comparing.node import ComparedNode, State, fragment_slices
from benchmarks.comparing.settings import Setting
from benchmarks.comparing.virtual_time import changes, clocks
from lowcomm.config import warmup
from lowcomm.data import Batches
from lowcomm.methods import RoundMethod
from lowcomm.models import Llama
from lowcomm.numerics import F32
from lowcomm.training import Kind
from peers.ipc import TensorPlace
from protocols.types import ConfigError
from sims.lockstep import LocalContribution, Lockstep, LockstepNodes

JOIN_WARMUP_STEPS = 30
"""A joiner has fresh moments: its learning rate rises over so many of its own steps."""


class Meetings(Protocol):
    """A method's work between the inner steps of its nodes, in virtual time."""

    def waits(self, own_step: int) -> bool:
        """Do all nodes wait for the exchange that follows this many steps?"""
        ...

    def after(self, own_step: int, nodes: Mapping[int, ComparedNode]) -> None:
        """Do all work that is due after so many steps of the method; `nodes`: the present ones."""
        ...

    def outer(self) -> F32:
        """fp32 [P]: the parameters to evaluate, with which a joiner also begins."""
        ...

    def close(self) -> None: ...


class WholeRounds:
    """Rounds in which the model is one fragment, and all present nodes wait for each result."""

    def __init__(self, setting: Setting, node: ComparedNode) -> None:
        """All nodes begin with the parameters of this one."""
        method = setting.method
        assert isinstance(method, RoundMethod)
        if method.overlap_steps or len(fragment_slices(node.layout)) > 1:
            raise ConfigError(
                f'{method.name}: the world "{setting.world}" needs one fragment and no overlap'
            )
        self._inner_steps = method.inner_steps
        self._lockstep = Lockstep(method, node.layout, nodes=setting.nodes)
        self._lockstep.begin(0, node.params_P)

    def waits(self, own_step: int) -> bool:
        return own_step % self._inner_steps == 0

    def after(self, own_step: int, nodes: Mapping[int, ComparedNode]) -> None:
        if own_step % self._inner_steps:
            return
        given = {
            number: LocalContribution(node.params_P, node.tokens, node.steps)
            for number, node in nodes.items()
            if node.steps
        }
        taken, _ = self._lockstep.exchange_round(0, given)
        for number, node in nodes.items():
            if taken[number].counted:
                node.params_P[:] = taken[number].values_P
            else:
                node.params_P += taken[number].values_P
            node.steps, node.tokens = 0, 0

    def outer(self) -> F32:
        return self._lockstep.arrays(0)[0]

    def close(self) -> None:
        self._lockstep.close()


class NodeState:
    """A node as lowcomm.training.interfaces.RoundState."""

    def __init__(self, node: ComparedNode) -> None:
        self._node = node
        self._slices = fragment_slices(node.layout)

    def write(self, fragment: int, place: memoryview) -> None:
        np.frombuffer(place, np.float32)[:] = self._node.params_P[self._slices[fragment]]

    copy = write

    def take_result(self, fragment: int, values: memoryview, kind: Kind, *, mixing: float) -> None:
        local_P = self._node.params_P[self._slices[fragment]]
        new_P = np.frombuffer(values, np.float32)
        if kind == "delta":
            local_P += new_P
        elif mixing:
            local_P *= np.float32(mixing)
            local_P += new_P * np.float32(1 - mixing)
        else:
            local_P[:] = new_P

    def snapshot(self, directory: str) -> None:
        """No daemon asks for a snapshot."""


class ComparedRankRounds:
    """Any method of rounds, with ranks as under a daemon: all nodes are equal, and none is lost."""

    def __init__(self, setting: Setting, nodes: Mapping[int, ComparedNode]) -> None:
        layout = [TensorPlace(t.fragment, t.name, t.shape, t.offset) for t in nodes[0].layout]
        self._tokens = setting.step_tokens
        # Each node waits for a run's last results, during which no node trains on.
        self._lockstep = LockstepNodes(setting.run, layout, nodes=setting.nodes)
        for each, node in zip(self._lockstep.nodes, nodes.values(), strict=True):
            each.begin(NodeState(node))
            each.go_on()

    def waits(self, own_step: int) -> bool:
        return False  # Equal nodes make their steps at the same time.

    def after(self, own_step: int, nodes: Mapping[int, ComparedNode]) -> None:
        for each in self._lockstep.nodes:
            each.step(tokens=self._tokens)
        # The first node may wait for the contribution of the last one.
        for _ in range(1 + len(self._lockstep.sizes)):
            able = [each.go_on() or each.finished for each in self._lockstep.nodes]
            if all(able):
                return
        raise AssertionError("one of several equal nodes waits for another one")

    def outer(self) -> F32:
        sizes = range(len(self._lockstep.sizes))
        return np.concatenate([self._lockstep.arrays(fragment)[0] for fragment in sizes])

    def close(self) -> None:
        self._lockstep.close()


class RoundGroup:
    """Each node trains by itself, in virtual time, and meets the others as its method defines."""

    def __init__(self, setting: Setting, batches: Batches, state: State | None) -> None:
        """`state`: of the warm start, if the setting has one."""
        method, first = setting.method, 0 if state is None else setting.warm_steps
        assert isinstance(method, RoundMethod)
        self._first = first
        self.nodes = {number: ComparedNode(setting) for number in range(setting.nodes)}
        if state is not None:
            for node in self.nodes.values():
                node.begin(state, steps=first)
        self._judge = ComparedNode(setting)
        self._judge.params_P[:] = self.nodes[0].params_P
        self._meetings: Meetings = (
            ComparedRankRounds(setting, self.nodes)
            if setting.world == "equal"
            else WholeRounds(setting, self._judge)
        )
        self._feed = Feed(setting, batches, first_step=first)
        self._pace = Pace(setting)
        self._clocks = clocks(setting.nodes, unequal=setting.world == "speeds", seed=setting.seed)
        rounds = (setting.steps - first) // method.inner_steps
        churns = setting.world == "churn"
        self._changes = (
            changes(setting.nodes, rounds=rounds, inner_steps=method.inner_steps) if churns else []
        )
        self._away: dict[int, ComparedNode] = {}
        self._joined: dict[int, int] = {}
        """For each joiner, its own steps since it joined."""
        self._own_steps = 0
        self._tokens = 0

    def make_step(self, step: int) -> None:
        own = step - self._first
        while self._changes and self._changes[0].time <= own:
            change = self._changes.pop(0)
            self._join(change.node) if change.joins else self._lose(change.node)
        waits = self._meetings.waits(own + 1)
        factor = self._pace.schedule(step)
        for number, clock in enumerate(self._clocks):
            for _ in range(clock.steps_until(own + 1)):
                if number in self.nodes:
                    self._train(number, factor)
            if waits:
                clock.meet(own + 1)
        self._meetings.after(own + 1, self.nodes)
        self._own_steps = own + 1

    @property
    def evaluated(self) -> Llama:
        self._judge.params_P[:] = self._meetings.outer()
        return self._judge.model

    @property
    def tokens(self) -> int:
        return self._tokens

    @property
    def waited(self) -> list[float]:
        return [clock.waited / max(self._own_steps, 1) for clock in self._clocks]

    @property
    def step_s(self) -> float:
        return self._pace.step_s

    def close(self) -> None:
        self._meetings.close()

    def _train(self, number: int, factor: float) -> None:
        if number in self._joined:
            factor *= warmup(self._joined[number], JOIN_WARMUP_STEPS)
            self._joined[number] += 1
        node, before = self.nodes[number], self.nodes[number].tokens
        self._pace.train(node, self._feed.draw(), factor)
        self._tokens += node.tokens - before

    def _lose(self, number: int) -> None:
        """Lose the node, with its training since the last exchange."""
        self._away[number] = self.nodes.pop(number)

    def _join(self, number: int) -> None:
        """Add a new node, which has the outer parameters and nothing else."""
        node = self._away.pop(number)
        node.params_P[:] = self._meetings.outer()
        node.renew_optimizer()
        node.steps, node.tokens = 0, 0
        self.nodes[number], self._joined[number] = node, 0
