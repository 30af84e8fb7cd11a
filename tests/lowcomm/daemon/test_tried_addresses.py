"""A node that finds no other one names the addresses that it tried, and why each failed."""

from lowcomm.daemon.tried_addresses import NAMED_MAX, with_tried
from protocols.peer import WaitReason

ELECTION = WaitReason("waiting", "a majority of the voters: beta cannot be reached", 1.0, 2.0)


def test_each_address_is_named_with_its_reason() -> None:
    faults = {"10.0.0.2:4711": "Connection refused", "10.0.0.1:4711": "no answer in time"}
    told = with_tried(ELECTION, faults).reason
    assert told == (
        "a majority of the voters: beta cannot be reached; tried 10.0.0.1:4711 (no answer in time),"
        " 10.0.0.2:4711 (Connection refused)"
    )


def test_many_addresses_are_counted() -> None:
    faults = {f"10.0.0.{number}:1": "no answer in time" for number in range(NAMED_MAX + 3)}
    told = with_tried(ELECTION, faults).reason
    assert told.count("no answer") == NAMED_MAX
    assert told.endswith(" and 3 more")


def test_a_node_that_trains_is_not_bothered_with_a_dead_one() -> None:
    training = WaitReason("training", "", 1.0, 2.0)
    assert with_tried(training, {"10.0.0.1:1": "no answer in time"}) is training
    assert with_tried(ELECTION, {}) is ELECTION
