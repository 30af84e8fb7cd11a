"""The ranks of a launcher: what their variables mean, and how the others find the daemon."""

import os
import sys
import threading
from dataclasses import replace

import pytest

from lowcomm.training import launched_ranks
from lowcomm.training.launched_ranks import LaunchedRanks
from protocols.types.errors import ConfigError, LowcommError

TWO = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_PORT": "29500"}
FOUND = {"LOWCOMM_SOCKET": "/s", "LOWCOMM_ATTEMPT": "0"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (*TWO, "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(variable, raising=False)


def launched(monkeypatch: pytest.MonkeyPatch, **changed: str) -> LaunchedRanks | None:
    for name, value in {**TWO, **changed}.items():
        monkeypatch.setenv(name, value)
    return launched_ranks.launched_ranks()


def test_a_program_without_a_launcher_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched_ranks.launched_ranks() is None
    monkeypatch.setenv("RANK", "0")
    assert launched_ranks.launched_ranks() is None


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"RANK": ""}, "WORLD_SIZE is set and RANK is not"),
        ({"RANK": "2"}, "RANK is 2 and WORLD_SIZE 2"),
        ({"RANK": "one"}, "RANK must be a number, got 'one'"),
        ({"WORLD_SIZE": "4"}, "start torchrun on each machine by itself, without --nnodes"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is not"),
    ],
)
def test_variables_that_make_no_sense_are_refused(
    changed: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        launched(monkeypatch, **changed)


def test_ranks_meet_at_an_address_of_their_launcher_and_its_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = launched(monkeypatch), launched(monkeypatch, RANK="0")
    again = launched(monkeypatch, TORCHELASTIC_RESTART_COUNT="1")
    elsewhere = launched(monkeypatch, TORCHELASTIC_RESTART_COUNT="", MASTER_PORT="29501")
    assert one
    assert other
    assert again
    assert elsewhere
    assert (one.ranks, one.rank, other.rank) == (2, 1, 0)
    assert one.address == other.address
    assert len({one.address, again.address, elsewhere.address}) == 3


def test_only_torchrun_is_a_launcher_that_ends_last(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, torchrun = launched(monkeypatch), launched(monkeypatch, TORCHELASTIC_RUN_ID="none")
    assert plain
    assert torchrun
    assert (plain.launcher, plain.command) == (0, [])
    assert torchrun.launcher == os.getppid()
    ours = replace(torchrun, launcher=os.getpid())
    assert ours.command[1:] == sys.orig_argv[1:]


@pytest.fixture
def first() -> LaunchedRanks:
    return LaunchedRanks(3, 0, b"\0lowcomm-test-%d" % os.getpid())


def test_the_first_rank_tells_each_other_one_where_the_daemon_is(first: LaunchedRanks) -> None:
    listening = first.listen()
    first.hand_out(listening, FOUND)
    assert [replace(first, rank=rank).ask(timeout_s=5) for rank in (1, 2)] == [FOUND, FOUND]
    with pytest.raises(LowcommError, match=r"rank 0 has not called .* within 0\.1 s"):
        replace(first, rank=1).ask(timeout_s=0.1)  # All had their answer.


def test_an_address_that_is_taken_is_told(first: LaunchedRanks) -> None:
    with first.listen(), pytest.raises(LowcommError, match="cannot listen for the node's other"):
        first.listen()


def test_the_others_learn_that_there_is_no_daemon(
    first: LaunchedRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launched_ranks, "FIRST_ERROR_S", 0.0)
    with first.listen() as listening:

        def refuse() -> None:
            link, _ = listening.accept()
            link.close()

        ending = threading.Thread(target=refuse)
        ending.start()
        with pytest.raises(LowcommError, match="rank 0 has not started the node's daemon"):
            replace(first, rank=1).ask(timeout_s=5)
        ending.join()
