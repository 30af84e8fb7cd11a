"""Figures of a system from the records of its exchanges. Pure functions.

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
    """The record of each worker."""
    cpu_s: float
    """CPU seconds of all processes of the system, until they were idle again."""
    wire_bytes: int | None
    """Bytes sent by all peers; None: they could not be counted."""
    digests: int
    """Number of different results."""
    mean_square: float
    """Mean squared error of the worst result, against the mean in fp64."""
    mean_error: float

    @property
    def seconds(self) -> float:
        return seconds(self.marks)

    @property
    def data_path_s(self) -> float | None:
        return data_path_s(self.marks)


def seconds(marks: Sequence[Marks]) -> float:
    """Seconds from the last contribution handed over to the last result in a buffer."""
    return max(m.received for m in marks) - max(m.handed for m in marks)


def data_path_s(marks: Sequence[Marks]) -> float | None:
    """Seconds for moving and summing the data, on the slowest peer; None: not known of all
    peers."""
    moments = _known(m.reduced for m in marks)
    if moments:
        return max(moments) - max(m.handed for m in marks)
    durations = _known(m.data_path_s for m in marks)
    return max(durations) if durations else None


@dataclass(frozen=True, slots=True)
class BusiestLine:
    """The busiest line, in one exchange."""

    rate_bps: float
    shared: bool
    """Whether all peers share the line; then the devices count its bytes."""
    payload_bytes: int | None
    """Bytes that the line must carry at least: encoded values without any headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemResult:
    """The result of one system. A figure that could not be measured is None; `error` or `note` says
    why."""

    system: str
    version: str
    codec: str = ""
    """The codec that the system really uses."""
    error: str = ""
    note: str = ""
    rounds: int = 0
    """Number of timed exchanges."""
    median_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    data_path_s: float | None = None
    """Median seconds for moving and summing the data."""
    cpu_s: float | None = None
    """Median CPU seconds of all peers together."""
    wire_bytes: int | None = None
    """Median bytes of all peers together, with the headers that the network devices count."""
    line_share: float | None = None
    """Share of a shaped, shared line's capacity that was used in the median exchange."""
    payload_share: float | None = None
    """The same for payload alone; of one direction's line if each direction has its own ..."""
    data_path_share: float | None = None
    """... and for payload alone during `data_path_s`."""
    first_s: float | None = None
    """Seconds of the run's first exchange, right after its connections were made."""
    first_share: float | None = None
    """The payload share of the first exchange."""
    peak_rss_bytes: int | None = None
    """Peak memory of the peer that needed most, over all its processes, with shared memory counted
    once. Without lowcomm's rank, which stands for the training."""
    rss_shmem_bytes: int | None = None
    """Shared memory in it at the end of the run."""
    bit_identical: bool | None = None
    """Whether all peers had the same result, in every timed exchange."""
    rms_error: float | None = None
    mean_error: float | None = None
    """The mean error of the exchange where it was largest: contributions alternate their sign."""
    lag_p99_s: float | None = None
    """Lateness of the worst peer's event loop, in the last minute that it reported ..."""
    lag_max_s: float | None = None
    """... and the maximum, in any minute that a peer reported."""
    busy_lag_p99_s: float | None = None
    """As `lag_p99_s`, over the samples during which payload moved."""
    heartbeat_late_p99_s: float | None = None
    """As `lag_p99_s`, for heartbeats between the peers, with the delay of the line."""
    heartbeat_late_max_s: float | None = None
    copy_in_s: float | None = None
    """Median seconds for which the slowest peer's training thread was blocked by writing ..."""
    copy_out_s: float | None = None
    """... and by reading."""
    congestion: tuple[str, ...] = ()
    """Congestion control algorithms of the system's sockets."""
    times_s: tuple[float, ...] = ()
    pause_max_s: float | None = None
    """Largest pause from the end of an exchange to the start of the next; None: there is only
    one."""


def with_figures(
    result: SystemResult, exchanges: Sequence[Exchanged], *, line: BusiestLine | None
) -> SystemResult:
    """Return the result with the figures of its exchanges, at least one. `line`: the shaped line,
    if any."""
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
    """Seconds from the last result of one exchange to the last contribution to the next."""
    return max(m.handed for m in after.marks) - max(m.received for m in before.marks)


def _newest(exchanges: Sequence[Exchanged], of: Callable[[Marks], float | None]) -> float | None:
    """The largest of the workers' last reported values; None: some worker reported none."""
    newest = [
        next((told for mark in reversed(marks) if (told := of(mark)) is not None), None)
        for marks in zip(*(one.marks for one in exchanges), strict=True)
    ]
    return max(_known(newest), default=None)


def _most(exchanges: Sequence[Exchanged], of: Callable[[Marks], float | None]) -> float | None:
    """The largest value that any worker reported; None: some worker reported none."""
    told = [
        max((late for mark in marks if (late := of(mark)) is not None), default=None)
        for marks in zip(*(one.marks for one in exchanges), strict=True)
    ]
    return max(_known(told), default=None)


def share(
    line: BusiestLine | None, carried_bytes: int | None, seconds: float | None
) -> float | None:
    """The share of the line's capacity that was used in this time."""
    if line is None or carried_bytes is None or not seconds:
        return None
    return 8 * carried_bytes / (line.rate_bps * seconds)


def _known(values: Iterable[float | None]) -> list[float]:
    """All values if all are known, else none."""
    values = list(values)
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []
