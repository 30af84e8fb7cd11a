"""Forged control messages: whatever a peer with a valid certificate may send.

A forged message is one that a peer has sent, with some of its fields changed; the codec accepts it,
as peers decode a message before their core gets it. Must NOT judge a run.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import Control, Install
from protocols.types import PeerId, limits
from protocols.wire import codec, decode_image, encode_image
from sims.node.node import Node
from sims.node.world_view import Observer
from sims.simulator.step_world import BareStepWorld, StepObserver
from sims.simulator.world import BareWorld

EVERY_S = 0.02
"""Virtual seconds between two forged messages."""
UNTIL_S = 60.0
"""Virtual time of the last one."""
KEPT = 20
"""Messages of each type from which forged ones are made."""
SEEN = 200
"""Numbers and texts of these messages that may stand in other fields."""
NUMBERS = (0, 1, 2, 3, 255, *((1 << bits) - 1 for bits in (16, 31, 32, 62, 63, 64)), 1 << 31)
FORGED = get_args(Control)
"""Types of forged messages."""
NO_WAY_ON = "no peer can go on from it"
"""Of a Stop: the log has an entry that contradicts the state."""
REFUSED = "refused by"
"""Of a Stop: the message of one peer has ended another one, which must not be in the run yet."""
STRANGER = "nobody.00000000"
LEADER = "leader"
"""In place of a name: the liar is the peer that leads at the time."""


class _Unobserved:
    """An observer that looks at nothing: forged messages break what checkers rely on."""

    @property
    def history(self) -> _Unobserved:
        return self

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return _nothing


def _nothing(*_: object, **__: object) -> bool:
    return False


class Forger:
    """Makes forged messages from those that it has seen."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 (a simulation, no secrets)
        self.made: Counter[str] = Counter()
        """Number of forged messages, by type."""
        self._messages: dict[type, deque[Control]] = {
            kind: deque((blank(kind),), KEPT) for kind in FORGED
        }
        self._texts: deque[str] = deque((STRANGER,), SEEN)
        self._numbers: deque[int] = deque((0,), SEEN)

    def saw(self, message: Control) -> None:
        kept = self._messages.get(type(message))
        if kept is not None and self.random.random() < 1 / 4:
            kept.append(message)
            self._collect(message)

    def forge(self, peers: Sequence[PeerId]) -> Control | None:
        """A message that the codec accepts, perhaps a true one at the wrong time; None if many
        tries bring none."""
        for _ in range(20):
            kind = self.random.choice(list(self._messages))
            message: Any = self.random.choice(self._messages[kind])
            try:
                for _ in range(self.random.choice((0, 1, 1, 1, 2, 3))):
                    message = self.changed(message, peers)
                read = codec.decode(codec.encode(message), size_max=limits.CONTROL_BYTES_MAX)
            except (OverflowError, TypeError, ValueError):
                continue  # No peer can send such values.
            self.made[kind.__name__] += 1
            return cast(Control, read)
        return None

    def _collect(self, value: Any) -> None:
        if isinstance(value, str):
            self._texts.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            self._numbers.append(value)
        elif isinstance(value, tuple):
            for item in cast(tuple[Any, ...], value)[:5]:
                self._collect(item)
        elif is_dataclass(value):
            for field in fields(value):
                self._collect(getattr(value, field.name))

    def changed(self, value: Any, peers: Sequence[PeerId]) -> Any:
        """Another value of the same type."""
        draw = self.random
        match value:
            case Install() if len(value.piece) == value.total_bytes and draw.random() < 1 / 2:
                image = encode_image(self.changed(decode_image(value.piece), peers))
                return replace(value, piece=image, total_bytes=len(image))
            case bool():
                return not value
            case int():
                near = (value + 1, max(0, value - 1))
                return draw.choice((*near, draw.choice(NUMBERS), draw.choice(self._numbers)))
            case str():
                return draw.choice((draw.choice(peers), draw.choice(self._texts), "", "x"))
            case bytes():
                return draw.choice((b"", value[:-1], value + b"x", draw.randbytes(len(value))))
            case tuple():
                return self._changed_items(cast(tuple[Any, ...], value), peers)
            case _ if is_dataclass(value) and not isinstance(value, type) and fields(value):
                name = draw.choice(fields(value)).name
                return replace(value, **{name: self.changed(getattr(value, name), peers)})
            case _:
                return value

    def _changed_items(self, items: tuple[Any, ...], peers: Sequence[PeerId]) -> tuple[Any, ...]:
        if not items or self.random.random() < 1 / 5:
            return self.random.choice(((), items + items, items[::-1], items[:1]))
        at, how = self.random.randrange(len(items)), self.random.random()
        one = items[at]
        new = () if how < 1 / 5 else (one, one) if how < 2 / 5 else (self.changed(one, peers),)
        return (*items[:at], *new, *items[at + 1 :])


def blank(kind: Any) -> Any:
    """A value of this type without content: 0, "", () or a record of such values. It stands for
    messages that no peer has sent yet."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return cast(type, kind)(*(blank(hints[field.name]) for field in fields(kind)))
    options = get_args(kind)
    if get_origin(kind) is tuple:
        return ()
    if options and get_origin(kind) is not Literal:
        return None if type(None) in options else blank(options[0])
    if options:
        return options[0]
    plain = getattr(kind, "__supertype__", kind)  # Of a NewType.
    return blank(plain) if plain is not kind else cast(type, kind)()


class _Forged(BareWorld):
    """A world in which one peer, the liar, sends forged messages beside its own."""

    forger: Forger | None = None
    _liar = LEADER
    ruined: str = ""
    """Why a peer could not go on from its log, or ended by a message; "" if all could and none
    did."""

    def stopped(self, node: Node, stop: c.Stop) -> None:
        super().stopped(node, stop)
        if NO_WAY_ON in stop.why or (node.raft.run and stop.why.startswith(REFUSED)):
            self.ruined = f"{node.peer}: {stop.why}"

    def make_observer(self) -> Observer[Node]:
        return cast(Observer[Node], _Unobserved())

    def lie(self, forger: Forger, *, liar: str) -> None:
        """Send forged messages from now on. `liar`: a peer's name, or LEADER."""
        self.forger, self._liar = forger, liar
        self._tick()

    def sent(self, node: Node, to: PeerId, message: Control) -> None:
        super().sent(node, to, message)
        if self.forger is not None:
            self.forger.saw(message)

    def _tick(self) -> None:
        assert self.forger is not None
        liar = next((node for node in self.live if self._lies(node)), None)
        if liar is None and self._liar != LEADER and self.live:
            # Its lies may have ended it: no peer answers an earlier incarnation.
            liar = self.live[-1]
            self._liar = liar.me.name
        if liar is not None:
            self._send_forged(liar, self.forger)
        if self.clock.now < UNTIL_S:
            self.clock.at(EVERY_S, self._tick)

    def _send_forged(self, liar: Node, forger: Forger) -> None:
        """Send one forged message to a peer that is connected with the liar."""
        others = [node.peer for node in self.live if node is not liar]
        others = [other for other in others if self.network.line(liar.peer, other).up]
        if others:
            to, forged = forger.random.choice(others), forger.forge(list(self.nodes))
            if forged is not None:
                self.carry(liar.peer, to, "control", v.MessageReceived(liar.peer, forged))

    def _lies(self, node: Node) -> bool:
        return node.core.leads if self._liar == LEADER else node.me.name == self._liar


class ForgedWorld(_Forged):
    """A run of rounds."""


class ForgedStepWorld(_Forged, BareStepWorld):
    """A stepwise run."""

    def make_observer(self) -> Observer[Node]:
        self.step_observer = cast(StepObserver, _Unobserved())
        return super().make_observer()
