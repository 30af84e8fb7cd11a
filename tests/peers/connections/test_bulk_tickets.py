"""Tickets: one for each control connection at a time, each good once."""

from peers.connections.bulk_tickets import Tickets
from peers.connections.control import Link
from peers.connections.encryption import Keys
from tests.peers.link_room import Recorder


def new_link() -> Link:
    return Link(Recorder(), accepted=True)


def test_a_ticket_is_good_once_and_the_next_one_is_another() -> None:
    tickets, link = Tickets(), new_link()
    secret = tickets.give(link)
    assert tickets.give(link) == secret, "it was not used yet"
    keys = Keys.of(secret)
    assert tickets.take(keys.ticket) == (link, keys)
    assert tickets.take(keys.ticket) is None
    assert tickets.give(link) != secret
    assert len(tickets) == 1


def test_a_ticket_ends_with_its_connection() -> None:
    tickets, one, other = Tickets(), new_link(), new_link()
    gone, stays = Keys.of(tickets.give(one)), Keys.of(tickets.give(other))
    tickets.void(one)
    tickets.void(one)
    assert tickets.take(gone.ticket) is None
    assert tickets.take(b"x" * 16) is None
    assert tickets.take(stays.ticket) == (other, stays)
    assert len(tickets) == 0
