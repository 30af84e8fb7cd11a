"""Figures of joins, from the records of ranks and daemons.

Must NOT read or write anything.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Span = tuple[float, float]
"""(from, to), in unix seconds."""


@dataclass(frozen=True, slots=True)
class Round:
    """One exchange of all members, in unix seconds."""

    number: int
    began: float
    """When the last member handed its contribution over."""
    ended: float
    """When the last member had the result."""
    since: float | None = None
    """When the last member had the result of the previous round; None: not known."""


@dataclass(frozen=True, slots=True)
class JoinTimes:
    """One joiner; times are in unix seconds."""

    began: float
    """When its process was started."""
    connected: float
    """When it was first connected with a peer."""
    verified: float
    """When it had the state that the log names."""
    ended: float
    """When its process had ended."""
    granted_s: float
    """Seconds from its place in the run to the verified state."""
    donor_bytes: tuple[int, ...]
    """Bytes sent by each donor."""
    cpu_s: float
    """CPU seconds of all daemons from its connection to the verified state, for any purpose."""

    @property
    def seconds(self) -> float:
        return self.verified - self.connected


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinMedians:
    """Medians, unless stated otherwise. None: nothing was measured."""

    joins: int
    connection_to_verified_s: float | None
    connection_to_verified_max_s: float | None
    cut_to_verified_s: float | None
    donors_used: int
    """The smallest number of donors of a join."""
    bytes_by_donor: tuple[float, ...]
    """Bytes by donor, sorted, largest first."""
    state_bytes: int
    rounds_alone: int
    rounds_during: int
    round_alone_s: float | None
    round_during_s: float | None
    """Of rounds that were under way between a joiner's connection and its verified state."""
    ratio: float | None
    period_alone_s: float | None
    """Seconds from one result to the next: members train, or rest, and exchange."""
    period_during_s: float | None
    """The same for periods in which a joiner got its state."""
    period_ratio: float | None
    transfer_cpu_s: float | None
    """CPU seconds of all daemons, over joins during which no round was under way."""


def rounds_of(told: Iterable[Sequence[Mapping[str, float]]]) -> list[Round]:
    """The rounds that are in the records of all members' ranks."""
    by_number: list[dict[int, Mapping[str, float]]] = [
        {int(line["round"]): line for line in lines} for lines in told
    ]
    common = set(by_number[0]) if by_number else set[int]()
    for lines in by_number[1:]:
        common &= lines.keys()
    received = {number: max(lines[number]["received"] for lines in by_number) for number in common}
    return [
        Round(
            number,
            max(lines[number]["handed"] for lines in by_number),
            received[number],
            received.get(number - 1),
        )
        for number in sorted(common)
    ]


def figures(rounds: Sequence[Round], joins: Sequence[JoinTimes]) -> JoinMedians:
    """Compute the figures. Rounds that overlap a joiner's lifetime but not its transfer are not
    counted: its process starts and ends on the same machine."""
    exchanges = [(x.began, x.ended) for x in rounds]
    alone, during, ratio = _compared(exchanges, joins)
    periods = [(x.since, x.ended) for x in rounds if x.since is not None]
    period_alone, period_during, period_ratio = _compared(periods, joins)
    undisturbed = [
        x for x in joins if not any(_overlap(one, x.connected, x.verified) for one in exchanges)
    ]
    gave = [sorted((size for size in join.donor_bytes if size), reverse=True) for join in joins]
    most = max(map(len, gave), default=0)
    shares = [[*sizes, *[0] * (most - len(sizes))] for sizes in gave]
    return JoinMedians(
        joins=len(joins),
        connection_to_verified_s=_median(join.seconds for join in joins),
        connection_to_verified_max_s=max((join.seconds for join in joins), default=None),
        cut_to_verified_s=_median(join.granted_s for join in joins),
        donors_used=min(map(len, gave), default=0),
        bytes_by_donor=tuple(statistics.median(column) for column in zip(*shares, strict=True)),
        state_bytes=max((sum(sizes) for sizes in gave), default=0),
        rounds_alone=len(alone),
        rounds_during=len(during),
        round_alone_s=_median(alone),
        round_during_s=_median(during),
        ratio=ratio,
        period_alone_s=_median(period_alone),
        period_during_s=_median(period_during),
        period_ratio=period_ratio,
        transfer_cpu_s=_median(join.cpu_s for join in undisturbed),
    )


def _compared(
    spans: Sequence[Span], joins: Sequence[JoinTimes]
) -> tuple[list[float], list[float], float | None]:
    """(seconds of the spans without a joiner, of those during a transfer, the ratio of their
    medians)."""
    alone = [b - a for a, b in spans if not any(_overlap((a, b), j.began, j.ended) for j in joins)]
    during = [
        b - a for a, b in spans if any(_overlap((a, b), j.connected, j.verified) for j in joins)
    ]
    one, other = _median(alone), _median(during)
    return alone, during, other / one if one and other else None


def _overlap(one: Span, began: float, ended: float) -> bool:
    return one[0] < ended and began < one[1]


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None
