"""The log travels in bites, and whoever has read it gets the rest as it comes."""

from protocols import entries as e
from protocols.commands import Send
from protocols.feed import APPENDS_MAX, Feed
from protocols.log import Log
from protocols.messages import Append, Heartbeat
from protocols.wire import ENTRIES_MAX
from tests.protocols.scenes import A, B, C, run


def long_log(entries: int) -> Log:
    log = Log()
    log.append(run())
    for _ in range(entries - 1):
        log.append(e.Left(A, ""))
    return log


def appended(sends: list[Send], to: object = B) -> list[int]:
    """Indices in the Appends."""
    return [
        entry.index
        for send in sends
        if isinstance(send.message, Append) and send.peer == to
        for entry in send.message.entries
    ]


def test_a_reader_gets_the_rest_and_then_what_comes() -> None:
    log = long_log(3)
    feed = Feed(log)
    assert appended(feed.read(B, 1)) == [2, 3]
    assert feed.publish(log.append(e.Left(A, ""))) == [
        Send(B, Append(1, (log.entries[3],))),
    ]


def test_who_did_not_ask_or_is_gone_gets_nothing() -> None:
    log = long_log(3)
    feed = Feed(log)
    feed.read(B, 3)
    feed.read(C, 3)
    feed.forget(B)
    assert [send.peer for send in feed.publish(log.append(e.Left(A, "")))] == [C]


def test_a_reader_that_is_ahead_of_us_gets_nothing_wrong() -> None:
    assert Feed(long_log(3)).read(B, 99) == []


def test_a_long_log_is_read_in_several_steps() -> None:
    """All of it at once would fill the reader's outbox, which ends the connection."""
    log = long_log(3 * APPENDS_MAX * ENTRIES_MAX)
    feed, index, steps = Feed(log), 0, 0
    while index < log.last_index:
        sends = feed.read(B, index)
        steps += 1
        got = appended(sends)
        assert got == list(range(index + 1, index + 1 + len(got)))
        assert len(got) == APPENDS_MAX * ENTRIES_MAX
        index = got[-1]
        if index < log.last_index:
            assert sends[-1] == Send(B, Heartbeat(log.last_index)), "it shall ask for more"
            assert feed.publish(log.entries[-1]) == [], "and not get what it cannot use"
    assert steps == 3
    assert [send.peer for send in feed.publish(log.append(e.Left(A, "")))] == [B]
