"""How a peer finds its leader."""

from protocols.interface import events as v
from protocols.interface.commands import Connect, Send
from protocols.links.leader_discovery import ASKED_MAX, RETRY_S, LeaderDiscovery
from protocols.messages import peer as m
from protocols.messages.peer import FindLeader, ReadLog
from protocols.types.ids import PeerId
from tests.protocols.led import leading
from tests.protocols.scenes import RULES, A, B, C, Follower, follower

UP = {A: "a:1", B: "b:1"}


def nobody() -> set[str]:
    """Of all that our log may name."""
    return set()


def test_who_has_a_leader_seeks_nobody() -> None:
    discovery = LeaderDiscovery("")
    assert discovery.look(5.0, UP, nobody, found=True) == []
    assert discovery.deadline == float("inf")


def test_who_has_nobody_to_ask_and_no_place_to_go_asks_nobody() -> None:
    discovery = LeaderDiscovery("")
    for now in (5.0, 6.0, 7.0):
        assert discovery.look(now, {}, nobody, found=False) == []
        assert discovery.deadline > now, "a deadline in the past would be a busy loop"


def test_who_is_connected_with_nobody_dials_where_somebody_was_said_to_be() -> None:
    """All that it knew may have moved."""
    discovery = LeaderDiscovery("b:1")
    discovery.told("c:1", UP, 7)
    discovery.look(5.0, {}, nobody, found=False)
    assert discovery.look(6.0, {}, nobody, found=False) == [
        Connect(PeerId(""), "b:1"),
        Connect(PeerId(""), "c:1"),
    ]


def test_whom_our_log_names_is_dialled_too_some_at_a_time() -> None:
    """Seed 1029129181: a joiner knew of one peer, which was gone for good."""
    discovery, named = LeaderDiscovery("a:1"), {f"p{i}:1" for i in range(ASKED_MAX + 1)}
    discovery.look(5.0, {}, lambda: named, found=False)
    dialled = [discovery.look(now, {}, lambda: named, found=False) for now in (6.0, 7.0)]
    assert [len(some) for some in dialled] == [ASKED_MAX] * 2
    places = {x.address for some in dialled for x in some if isinstance(x, Connect)}
    assert places == {"a:1", *named}


def test_everybody_is_asked_after_a_while_and_again() -> None:
    """Else a peer that joins at one which has just started would wait for ever."""
    discovery = LeaderDiscovery("")
    assert discovery.look(5.0, UP, nobody, found=False) == [], "it may be on its way"
    assert discovery.deadline == 5.0 + RETRY_S
    assert discovery.look(5.5, UP, nobody, found=False) == []
    assert discovery.look(6.0, UP, nobody, found=False) == [
        Send(A, FindLeader()),
        Send(B, FindLeader()),
    ]
    assert discovery.look(6.5, UP, nobody, found=False) == []
    assert discovery.look(7.0, {C: "c:1"}, nobody, found=False) == [Send(C, FindLeader())]
    assert discovery.look(7.5, UP, nobody, found=True) == []
    assert discovery.deadline == float("inf")


def test_who_is_connected_with_the_lost_alone_also_tries_the_place_that_it_was_told() -> None:
    """Two joiners that know only each other would ask each other for ever."""
    discovery = LeaderDiscovery("a:1")
    discovery.look(5.0, {C: "c:1"}, nobody, found=False)
    asked = discovery.look(6.0, {C: "c:1"}, nobody, found=False)
    assert asked == [Send(C, FindLeader()), Connect(PeerId(""), "a:1")]


def test_in_a_large_run_some_are_asked_at_a_time_and_others_the_next_time() -> None:
    """When a leader dies, everybody seeks."""
    discovery = LeaderDiscovery("")
    up = {PeerId(f"p{i:02}.1"): f"p{i:02}:1" for i in range(20)}
    discovery.look(5.0, up, nobody, found=False)
    asked = [
        [x.peer for x in discovery.look(now, up, nobody, found=False) if isinstance(x, Send)]
        for now in (6.0, 7.0, 8.0)
    ]
    assert [len(some) for some in asked] == [ASKED_MAX] * 3
    assert {peer for some in asked for peer in some} == up.keys()


def test_a_leader_that_is_connected_is_asked_for_its_log() -> None:
    assert LeaderDiscovery("").told("a:1", UP, 7) == [Send(A, ReadLog(7))]


def test_a_leader_that_is_not_connected_is_dialled() -> None:
    discovery = LeaderDiscovery("")
    assert discovery.told("c:1", UP, 7) == [Connect(PeerId(""), "c:1")]
    assert discovery.address == "c:1"


def test_who_does_not_know_either_is_no_help() -> None:
    assert LeaderDiscovery("").told("", UP, 7) == []


# With a core --------------------------------------------------------------------------------


def test_a_hello_that_names_the_leader_is_enough() -> None:
    scene = Follower(B)
    scene.meets(C, leader="a:1")
    assert scene.all(Connect) == [Connect(PeerId(""), "a:1")]
    scene.meets(A, leader="a:1")
    assert scene.sent(ReadLog) == [(A, ReadLog(0))]


def test_a_joiner_at_somebody_who_knows_no_leader_asks_until_it_does() -> None:
    scene = Follower(B)
    scene.meets(C, leader="")
    scene.said = scene.waits(2 * RETRY_S)
    assert scene.sent(FindLeader) == [(C, FindLeader())] * 2
    assert scene.hears(C, m.LeaderAddress("")) == []
    assert scene.hears(C, m.LeaderAddress("a:1")) == [Connect(PeerId(""), "a:1")]


def test_a_leader_that_falls_silent_is_sought() -> None:
    scene = follower(B, C)
    scene.said = scene.waits(2 * RULES.election_timeout_s + 2 * RETRY_S)
    assert {peer for peer, _ in scene.sent(FindLeader)} == {A, C}


def test_what_others_say_of_a_leader_that_we_hear_is_old_news() -> None:
    scene = follower(B, C)
    assert scene.hears(C, m.LeaderAddress("elsewhere:1")) == []


def test_everybody_answers_who_leads_as_far_as_it_knows() -> None:
    assert follower(B, C).hears(C, FindLeader()) == [Send(C, m.LeaderAddress("a:1"))]
    assert leading(B).hears(B, FindLeader()) == [Send(B, m.LeaderAddress("a:1"))]
    lost = follower(B, C)
    lost.hears(C, m.Vote(2, 99, 1, pre=False, urgent=True))
    lost.hears(C, FindLeader())
    assert lost.sent(m.LeaderAddress) == [(C, m.LeaderAddress(""))]


def test_who_led_and_does_not_any_more_is_not_dialled_by_its_own_address() -> None:
    """Others have not heard yet that it leads no longer."""
    scene = leading(B)
    scene.hears(B, m.Vote(9, 99, 9, pre=False, urgent=True))
    assert not scene.core.leads
    assert scene.hears(B, m.LeaderAddress("a:1")) == []
    scene.on(v.DeadlineReached())
    assert scene.all(Connect) == []
