"""Figures of joins, from what ranks and daemons wrote down.

Must NOT read or write anything.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Round:
    """One exchange of all members, in unix seconds."""

    number: int
    began: float
    """When the last of them handed its contribution over."""
    ended: float
    """When the last of them had the result."""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Join:
    """One joiner, in unix seconds."""

    began: float
    """When its process was started."""
    connected: float
    """When it was first connected with anybody."""
    verified: float
    """When it had a state that is the log's."""
    ended: float
    """When its process had ended."""
    granted_s: float
    """From its place in the run to the verified state."""
    donor_bytes: tuple[int, ...]
    """What each donor gave."""

    @property
    def seconds(self) -> float:
        return self.verified - self.connected


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Medians, but for what says otherwise. None: nothing was measured."""

    joins: int
    connection_to_verified_s: float | None
    connection_to_verified_max_s: float | None
    cut_to_verified_s: float | None
    donors_used: int
    """In the join with fewest."""
    bytes_by_donor: tuple[float, ...]
    """Sorted, largest first."""
    state_bytes: int
    rounds_alone: int
    rounds_during: int
    round_alone_s: float | None
    round_during_s: float | None
    """Of rounds that were under way between a joiner's connection and its verified state."""
    ratio: float | None


def rounds_of(told: Iterable[Sequence[Mapping[str, float]]]) -> list[Round]:
    """Of what each member's rank wrote: those rounds in which all of them were."""
    by_number: list[dict[int, Mapping[str, float]]] = [
        {int(line["round"]): line for line in lines} for lines in told
    ]
    common = set(by_number[0]) if by_number else set[int]()
    for lines in by_number[1:]:
        common &= lines.keys()
    return [
        Round(
            number,
            max(lines[number]["handed"] for lines in by_number),
            max(lines[number]["received"] for lines in by_number),
        )
        for number in sorted(common)
    ]


def figures(rounds: Sequence[Round], joins: Sequence[Join]) -> Figures:
    """Rounds that overlap a joiner's life but not its transfer count nowhere: its process starts
    and ends on the same machine."""
    during = [x for x in rounds if any(_overlap(x, j.connected, j.verified) for j in joins)]
    alone = [x for x in rounds if not any(_overlap(x, j.began, j.ended) for j in joins)]
    gave = [sorted((size for size in join.donor_bytes if size), reverse=True) for join in joins]
    most = max(map(len, gave), default=0)
    shares = [[*sizes, *[0] * (most - len(sizes))] for sizes in gave]
    round_alone_s, round_during_s = (
        _median(x.seconds for x in alone),
        _median(x.seconds for x in during),
    )
    ratio = round_during_s / round_alone_s if round_alone_s and round_during_s else None
    return Figures(
        joins=len(joins),
        connection_to_verified_s=_median(join.seconds for join in joins),
        connection_to_verified_max_s=max((join.seconds for join in joins), default=None),
        cut_to_verified_s=_median(join.granted_s for join in joins),
        donors_used=min(map(len, gave), default=0),
        bytes_by_donor=tuple(statistics.median(column) for column in zip(*shares, strict=True)),
        state_bytes=max((sum(sizes) for sizes in gave), default=0),
        rounds_alone=len(alone),
        rounds_during=len(during),
        round_alone_s=round_alone_s,
        round_during_s=round_during_s,
        ratio=ratio,
    )


def _overlap(one: Round, began: float, ended: float) -> bool:
    return one.began < ended and began < one.ended


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.median(found) if found else None
