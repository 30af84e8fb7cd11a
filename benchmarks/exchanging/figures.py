"""From what was recorded of each exchange to what is told of a system. Pure functions.

Must NOT measure.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap

from benchmarks.exchanging.worker import Marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """One timed exchange of one system."""

    marks: tuple[Marks, ...]
    """Of each worker."""
    cpu_s: float
    """Of all processes of the system, until they were idle again."""
    wire_bytes: int | None
    """Sent by all peers; None: nobody could count."""
    digests: int
    """How many different results there were."""
    mean_square: float
    """Of the worst result's error: what the mean should be is computed in fp64."""
    mean_error: float

    @property
    def seconds(self) -> float:
        return seconds(self.marks)

    @property
    def data_path_s(self) -> float | None:
        return data_path_s(self.marks)


def seconds(marks: Sequence[Marks]) -> float:
    """From the last contribution handed over to the last result in a buffer."""
    return max(m.received for m in marks) - max(m.handed for m in marks)


def data_path_s(marks: Sequence[Marks]) -> float | None:
    """Moving and summing the data alone, on the slowest peer; None: it is not known of all."""
    moments = _known(m.reduced for m in marks)
    if moments:
        return max(moments) - max(m.handed for m in marks)
    durations = _known(m.data_path_s for m in marks)
    return max(durations) if durations else None


@dataclass(frozen=True, slots=True)
class Line:
    """The busiest one, in one exchange."""

    rate_bps: float
    shared: bool
    """By all peers; the devices count what it carries."""
    payload_bytes: int | None
    """What it has to carry at least: encoded values, and no head of anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of one system. What could not be had is None, and `error` or `note` says why."""

    system: str
    version: str
    codec: str = ""
    """What it really sends."""
    error: str = ""
    note: str = ""
    rounds: int = 0
    """That were timed."""
    median_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    data_path_s: float | None = None
    """Median; moving and summing the data alone."""
    cpu_s: float | None = None
    """Median, of all peers together."""
    wire_bytes: int | None = None
    """Median, of all peers together, with the headers that the network devices saw."""
    line_share: float | None = None
    """Of what a shaped line that all share could have carried in the median exchange."""
    payload_share: float | None = None
    """The same of payload alone, of one direction's line if each has its own ..."""
    data_path_share: float | None = None
    """... and in the time for the data alone."""
    first_s: float | None = None
    """Of the run's first exchange: its connections have just been made."""
    first_share: float | None = None
    """Of payload in that."""
    peak_rss_bytes: int | None = None
    """Of the peer that needed most: the most memory that its processes ever had, what they share
    counted once. Without our rank, which stands for the training."""
    rss_shmem_bytes: int | None = None
    """Shared memory in it, now."""
    bit_identical: bool | None = None
    """All peers had the same result, in every timed exchange."""
    rms_error: float | None = None
    mean_error: float | None = None
    """Of the exchange where it was largest: contributions change their sign with each."""
    lag_p99_s: float | None = None
    """By how much a peer's loop was late, in the last minute of which it told; the worst one ..."""
    lag_max_s: float | None = None
    """... and at most, in any minute of which it told."""
    busy_lag_p99_s: float | None = None
    """The first one, of those samples alone in which payload moved."""
    heartbeat_late_p99_s: float | None = None
    """As `lag_p99_s`, of the heartbeats that peers heard of each other, line included."""
    heartbeat_late_max_s: float | None = None
    copy_in_s: float | None = None
    """Median; for so long the slowest peer's training thread was blocked by writing ..."""
    copy_out_s: float | None = None
    """... and by reading."""
    congestion: tuple[str, ...] = ()
    """Of its sockets."""
    times_s: tuple[float, ...] = ()
    pause_max_s: float | None = None
    """At most, from the end of an exchange to the begin of the next; None: there is only one."""


def with_figures(result: Result, exchanges: Sequence[Exchanged], *, line: Line | None) -> Result:
    """The same, with what its exchanges show; there is at least one. `line`: if it is shaped."""
    times = [one.seconds for one in exchanges]
    wires = [one.wire_bytes for one in exchanges if one.wire_bytes is not None]
    wire_bytes = round(statistics.median(wires)) if wires else None
    median_s = statistics.median(times)
    data_paths = _known(one.data_path_s for one in exchanges)
    data_s = statistics.median(data_paths) if data_paths else None
    payload_bytes = line.payload_bytes if line is not None else None
    wired_bytes = wire_bytes if line is not None and line.shared else None
    return replace(
        result,
        rounds=len(exchanges),
        median_s=median_s,
        min_s=min(times),
        max_s=max(times),
        data_path_s=data_s,
        cpu_s=statistics.median(one.cpu_s for one in exchanges),
        wire_bytes=wire_bytes,
        line_share=share(line, wired_bytes, median_s),
        payload_share=share(line, payload_bytes, median_s),
        data_path_share=share(line, payload_bytes, data_s),
        first_share=share(line, payload_bytes, result.first_s),
        bit_identical=all(one.digests == 1 for one in exchanges),
        rms_error=math.sqrt(statistics.fmean(one.mean_square for one in exchanges)),
        mean_error=max((one.mean_error for one in exchanges), key=abs),
        lag_p99_s=_newest(exchanges, lambda mark: mark.lag_p99_s),
        lag_max_s=_most(exchanges, lambda mark: mark.lag_max_s),
        busy_lag_p99_s=_newest(exchanges, lambda mark: mark.busy_lag_p99_s),
        heartbeat_late_p99_s=_newest(exchanges, lambda mark: mark.heartbeat_late_p99_s),
        heartbeat_late_max_s=_most(exchanges, lambda mark: mark.heartbeat_late_max_s),
        copy_in_s=statistics.median(max(m.copy_in_s for m in one.marks) for one in exchanges),
        copy_out_s=statistics.median(max(m.copy_out_s for m in one.marks) for one in exchanges),
        times_s=tuple(times),
        pause_max_s=max(starmap(_pause_s, pairwise(exchanges)), default=None),
    )


def _pause_s(before: Exchanged, after: Exchanged) -> float:
    """From the last result of one to the last contribution to the other."""
    return max(m.handed for m in after.marks) - max(m.received for m in before.marks)


def _newest(exchanges: Sequence[Exchanged], of: Callable[[Marks], float | None]) -> float | None:
    """The largest of what each worker told last; None: some told nothing."""
    newest = [
        next((told for mark in reversed(marks) if (told := of(mark)) is not None), None)
        for marks in zip(*(one.marks for one in exchanges), strict=True)
    ]
    return max(_known(newest), default=None)


def _most(exchanges: Sequence[Exchanged], of: Callable[[Marks], float | None]) -> float | None:
    """The largest that any worker ever told; None: some told nothing."""
    told = [
        max((late for mark in marks if (late := of(mark)) is not None), default=None)
        for marks in zip(*(one.marks for one in exchanges), strict=True)
    ]
    return max(_known(told), default=None)


def share(line: Line | None, carried_bytes: int | None, seconds: float | None) -> float | None:
    """Of what the line could have carried."""
    if line is None or carried_bytes is None or not seconds:
        return None
    return 8 * carried_bytes / (line.rate_bps * seconds)


def _known(values: Iterable[float | None]) -> list[float]:
    """All of them, or none."""
    values = list(values)
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []
