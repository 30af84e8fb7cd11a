"""Traffic of a run of two peers, one of which lives twice, by hand."""

from typing import Any

import pytest

from lowcomm.reports.events import Event, Finished, Start, Traffic
from lowcomm.reports.process_lifetimes import find_lives
from lowcomm.reports.traffic import (
    COLUMNS,
    sent_over_time,
    traffic_figures,
    traffic_row,
    traffic_text,
)

A, B = "alpha.1", "beta.2"


def traffic(peer: str, t: float, *, lag: float = 0.001, **changed: Any) -> Traffic:
    """With the other one and one that is gone for long: nothing but what is `changed`."""
    zeros = (0, 0)
    fields: dict[str, Any] = dict.fromkeys((*COLUMNS, "refused_bytes", "stalls"), zeros)
    fields |= {"stalled_s": (0.0, 0.0), "round_trip_s": (0.0, 0.0), **changed}
    return Traffic(
        t=t,
        peer=peer,
        name="",
        peers=("", B if peer == A else A),
        sent_bytes_per_s=0.0,
        received_bytes_per_s=0.0,
        lag_p50_s=0.0,
        lag_p99_s=lag,
        lag_max_s=2 * lag,
        **fields,
    )


def start(peer: str, t: float) -> Start:
    return Start(t=t, peer=peer, name=peer[:-2], pid=1, exec_t=t, ranks=1, params=0)


EVENTS: list[Event] = [
    start(A, 100.0),
    start(B, 101.0),
    traffic(A, 105.0, payload_sent_bytes=(0, 600), round_trip_s=(0.0, 0.1), lag=0.005),
    traffic(B, 106.0, payload_sent_bytes=(0, 300), transfer_received_bytes=(0, 20)),
    start(B, 110.0),  # Its counters begin anew.
    traffic(B, 111.0, control_sent_bytes=(30, 10), stalls=(1, 1), stalled_s=(0.5, 1.0)),
    traffic(
        A,
        112.0,
        payload_sent_bytes=(0, 800),
        transfer_sent_bytes=(0, 60),
        payload_received_bytes=(5, 7),
        refused_bytes=(2, 1),
    ),
    Finished(
        t=113.0, peer=A, name="", outer_steps=1, bytes_sent=0, bytes_received=0, state_digest=""
    ),
]
LIVES = find_lives(EVENTS)


def test_the_lives_of_a_peer_add_up_and_its_last_word_counts() -> None:
    alpha, beta = traffic_figures(LIVES, {A: "alpha"})
    assert (alpha.peer, alpha.name, beta.name) == (A, "alpha", B)
    assert (alpha.payload_sent_bytes, alpha.transfer_sent_bytes) == (800, 60)
    assert (alpha.payload_received_bytes, alpha.refused_bytes) == (12, 3)
    assert (beta.payload_sent_bytes, beta.control_sent_bytes) == (300, 40)
    assert beta.transfer_received_bytes == 20
    assert (beta.stalls, beta.stalled_s) == (2, 1.5)
    assert (alpha.round_trip_s, beta.round_trip_s) == (0.1, None)
    assert (alpha.lag_p99_s, alpha.lag_max_s) == (0.005, 0.01)


def test_what_all_have_sent_never_falls() -> None:
    found = sent_over_time(LIVES, 100.0)
    assert [t for t, _ in found["payload"]] == [5.0, 6.0, 11.0, 12.0]
    assert [size for _, size in found["payload"]] == [600, 900, 900, 1100]
    assert [size for _, size in found["transfer"]] == [0, 0, 0, 60]
    assert [size for _, size in found["control"]] == [0, 0, 40, 40]


def test_one_line_says_what_it_was_for() -> None:
    figure, note = traffic_text(traffic_figures(LIVES, {}))
    assert figure == "91.7 % payload"
    assert note == (
        "5 % transfer, 3.33 % control; 1.5 s stalled; loop lag p99 5.0 ms in the worst minute"
    )


def test_who_told_nothing_has_no_figures() -> None:
    events: list[Event] = [start(A, 100.0), traffic(B, 101.0)]
    lives = find_lives(events)
    (beta,) = traffic_figures(lives, {})
    assert beta.peer == B
    assert traffic_text([beta]) == ("", "")
    assert traffic_text([]) == ("", "")
    assert sent_over_time(find_lives(events[:1]), 0.0) == {
        "payload": [],
        "transfer": [],
        "relay": [],
        "control": [],
    }


@pytest.mark.parametrize(
    ("stalls", "told"), [((0, 0), "none"), ((1, 1), "2, 1.5 s")], ids=["none", "some"]
)
def test_a_row_is_text(stalls: tuple[int, int], told: str) -> None:
    event = traffic(A, 101.0, stalls=stalls, stalled_s=(0.5, 1.0), refused_bytes=(2048, 0))
    (alpha,) = traffic_figures(find_lives([event]), {})
    row = traffic_row(alpha)
    assert row["stalls"] == told
    assert (row["refused_bytes"], row["payload_sent_bytes"]) == ("2.0 KiB", "0 B")
    assert (row["round_trip_s"], row["lag_p99_s"]) == ("", "1.0 ms")


def test_tuples_of_different_lengths_are_no_error() -> None:
    damaged = traffic(A, 101.0, payload_sent_bytes=(1,), stalled_s=(), round_trip_s=())
    (alpha,) = traffic_figures(find_lives([damaged]), {})
    assert (alpha.payload_sent_bytes, alpha.round_trip_s) == (1, None)
