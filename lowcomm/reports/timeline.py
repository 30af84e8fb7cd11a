"""What happened in a run, read from the events.jsonl of its nodes into typed records.

Reading changes nothing and trusts nothing: a line counts once its newline is there, a line that
does not decode is skipped and named in `problems`, and text from peers loses its control
characters here, so that no reader has to think of terminal escapes. Must NOT compute figures
(lowcomm.reports.summary does) and must NOT import torch.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, cast, get_type_hints

from lowcomm.reports.events import (
    KINDS,
    Attempt,
    Checkpoint,
    Commit,
    Diverged,
    Dropped,
    Elected,
    Evaluated,
    Event,
    Fault,
    Finished,
    Forked,
    GaveUp,
    Left,
    Listening,
    Lost,
    Member,
    MetricsListening,
    Note,
    RanksLost,
    RanksReady,
    Restored,
    SnapshotReceived,
    Start,
    Stopped,
    View,
    Waiting,
    Witness,
)

READ_BYTES_MAX = 8 << 20
"""Read from one file by one call: a live view must not stand still over a long history."""
PROBLEMS_MAX = 20
STORY_CHARS_MAX = 400
ROSTER_NAMES_MAX = 8
"""A story names so many peers; more are counted."""

_ITEMS: Mapping[Any, type] = {tuple[kind, ...]: kind for kind in (str, int, float)}
"""The tuples that a record may have, and what is in them."""


class EventError(ValueError):
    """A line of an event file is not an event. The text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """All events of a run by time, and the first lines that were not understood."""

    events: tuple[Event, ...]
    problems: tuple[str, ...] = ()


class Follower:
    """Reads a run directory again and again; each call gives what is new.

    Nodes may appear at any time. `problems` names at most PROBLEMS_MAX lines that were skipped.
    """

    def __init__(self, run_dir: Path) -> None:
        self.problems: list[str] = []
        self._run_dir = run_dir
        self._read_so_far: dict[Path, tuple[int, int]] = {}  # Bytes and lines, whole lines only.

    def read(self) -> list[Event]:
        """New events since the last call, by time. Raises OSError if a file cannot be read."""
        events: list[Event] = []
        # The launcher may keep a file of its own beside the node directories.
        own, nodes = self._run_dir.glob("events.jsonl"), self._run_dir.glob("*/events.jsonl")
        for path in [*own, *sorted(nodes)]:
            events += self._read_file(path)
        return sorted(events, key=lambda event: event.t)

    def read_all(self) -> list[Event]:
        """As `read`, until nothing is left to read."""
        events, before = self.read(), dict[Path, tuple[int, int]]()
        while self._read_so_far != before:
            before = dict(self._read_so_far)
            events += self.read()
        return sorted(events, key=lambda event: event.t)

    def _read_file(self, path: Path) -> list[Event]:
        events: list[Event] = []
        offset, count = self._read_so_far.get(path, (0, 0))
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(READ_BYTES_MAX)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole and len(data) == READ_BYTES_MAX:
            whole = data  # No event is that long: drop it piece by piece, do not stall on it.
        lines = whole.splitlines()
        for number, line in enumerate(lines, start=count + 1):
            try:
                event = decode(line) if line.strip() else None
            except EventError as error:
                if len(self.problems) < PROBLEMS_MAX:
                    where = printable(str(path.relative_to(self._run_dir)))
                    self.problems.append(f"{where}:{number}: {error}")
            else:
                events += [] if event is None else [event]
        self._read_so_far[path] = (offset + len(whole), count + len(lines))
        return events


def read_timeline(run_dir: Path) -> Timeline:
    """Everything that the nodes of a run directory wrote. Raises OSError."""
    follower = Follower(run_dir)
    events = tuple(follower.read_all())
    return Timeline(events, tuple(follower.problems))


def decode(line: bytes) -> Event | None:
    """One line as a record; None for a kind of a newer version. Unknown keys are ignored.

    Raises EventError: not JSON, a key is missing, or of another type.
    """
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise EventError("not JSON") from error
    if not isinstance(raw, dict):
        raise EventError("not an object")
    table = cast(dict[str, Any], raw)
    kind = table.get("kind")
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        return None
    values: dict[str, Any] = {}
    for name, expected, needed in _fields(cls):
        if name not in table:
            if needed:
                raise EventError(f"{kind} without {name}")
            continue
        try:
            values[name] = _value(name, expected, table[name])
        except (TypeError, OverflowError):
            raise EventError(f"{kind}.{name} is not {expected}") from None
    return cls(**values)


def printable(text: str, *, keep: str = "") -> str:
    """The text without control, format and surrogate characters: each becomes a question mark."""
    return "".join(ch if ch.isprintable() or ch in keep else "?" for ch in text)


def peer_names(events: Iterable[Event]) -> dict[str, str]:
    """{peer id: name}. Ids that share a name get a bit of the id: people must tell them apart."""
    names: dict[str, str] = {}
    for event in events:
        if isinstance(event, Start):
            names[event.peer] = event.name
        elif isinstance(event, Member):
            names.setdefault(event.member, event.member_name)
    taken = list(names.values())
    return {
        peer: name if taken.count(name) == 1 else f"{name}.{peer.rpartition('.')[2][:4]}"
        for peer, name in names.items()
    }


def name_of(peer: str, names: Mapping[str, str]) -> str:
    """The name, or the readable half of the id."""
    return names.get(peer) or peer.partition(".")[0] or "?"


def roster_text(roster: Sequence[str], names: Mapping[str, str]) -> str:
    """ "alpha, beta", shortened when many."""
    shown = [name_of(peer, names) for peer in roster[:ROSTER_NAMES_MAX]]
    more = len(roster) - len(shown)
    return (", ".join(shown) + (f" and {more} more" if more else "")) or "nobody"


def story(event: Event, names: Mapping[str, str]) -> str | None:
    """One sentence for a person, or None for what matters to no one while it happens.

    Several peers tell the same (a commit, a loss): equal sentences are the same story.
    """
    text = _sentence(event, names)[:STORY_CHARS_MAX]
    for peer, name in names.items():
        text = text.replace(peer, name) if peer else text  # Daemons give their reasons in ids.
    return text or None


def _sentence(event: Event, names: Mapping[str, str]) -> str:
    name = name_of(event.peer, names)
    match event:
        case Listening():
            where = f"on {event.address}" if event.address else "nowhere, and dials everyone"
            return f"{name} listens {where}"
        case MetricsListening():
            return f"{name} gives its metrics at http://{event.address}/metrics"
        case Waiting():
            return f"{name} waits: {event.reason}"
        case Member():
            return f"{name_of(event.member, names)} is a member"
        case Lost():
            return f"{name_of(event.member, names)} lost ({event.why})"
        case Left():
            return f"{name_of(event.member, names)} left ({event.why})"
        case Elected():
            return f"{event.leader_name} leads"
        case Restored():
            return f"nobody has a newer state: back to that of round {event.round}"
        case Forked(lonely=True):
            return f"{event.voter_name} goes on alone from round {event.round}, in its own branch"
        case Forked():
            return f"by force: {event.voter_name} alone votes, from round {event.round} on"
        case Dropped():
            return f"the branch of {event.member_name} ({event.tokens} tokens) is given up"
        case GaveUp():
            return f"{name} joins anew at {event.contact}: {event.why}; kept in {event.kept}"
        case Witness():
            return f"{name_of(event.member, names)} is a witness"
        case View():
            return f"from round {event.first_round} on: {roster_text(event.roster, names)}"
        case Attempt():
            who = roster_text(event.roster, names)
            return f"{event.why}: round {event.round} goes on with {who}"
        case Commit():
            who = roster_text(event.roster, names)
            fragment = f" of fragment {event.fragment}" if event.fragment else ""
            return f"round {event.round}{fragment} committed by {who} (step {event.inner_step})"
        case Fault():
            return f"fault at {name}: {event.what}" if name != "?" else f"fault: {event.what}"
        case RanksReady():
            return f"{name} trains" + (f" again (attempt {event.attempt})" * bool(event.attempt))
        case RanksLost():
            return f"the ranks of {name} are lost ({event.why})"
        case SnapshotReceived():
            size = f"{sum(event.donor_bytes) / 2**20:.1f} MiB in {event.seconds:.1f} s"
            donors = ", ".join(name_of(donor, names) for donor in event.donors)
            return f"{name} has its state from {donors} ({size})"
        case Checkpoint():
            return f"{name} wrote its checkpoint of round {event.round}"
        case Evaluated():
            return f"{name} evaluates: loss {event.loss:.4f} over {event.windows} windows"
        case Finished():
            return f"{name} finished after {event.outer_steps} outer steps"
        case Stopped():
            return f"{name} stopped ({event.why})"
        case Diverged():
            return f"{name_of(event.member, names)} differs from the others in round {event.round}"
        case Note():
            return f"{event.topic}: {event.text}"
        case _:
            return ""


@cache
def _fields(cls: type[Event]) -> tuple[tuple[str, Any, bool], ...]:
    """(name, type, whether a line must have it)."""
    hints = get_type_hints(cls)
    return tuple((each.name, hints[each.name], each.default is MISSING) for each in fields(cls))


def _value(name: str, expected: Any, raw: Any) -> Any:
    """`raw` as the record holds it; no coercion but int to float. Raises TypeError."""
    if expected is float and type(raw) in (int, float):
        if name != "loss" and not math.isfinite(raw):  # A diverged loss is news, not damage.
            raise TypeError
        return float(raw)
    if expected is str and isinstance(raw, str):
        return printable(raw, keep="\n\t" if name == "sample" else "")
    if expected in _ITEMS and isinstance(raw, list):
        return tuple(_value(name, _ITEMS[expected], item) for item in cast(list[Any], raw))
    if type(raw) is not expected:
        raise TypeError
    return raw
