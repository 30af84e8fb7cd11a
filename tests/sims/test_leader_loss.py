"""The leader of real daemons is killed: the others go on with one state, and its place is taken."""

import asyncio
from pathlib import Path

import pytest

from protocols.types.errors import LowcommError
from sims.leader_loss import play, within, write_config
from sims.paced.rank import RankSpeed


@pytest.mark.long
@pytest.mark.deadline(150)
def test_a_run_outlives_its_leader(tmp_path: Path) -> None:
    config = write_config(tmp_path, peers=3, rounds=40)
    pace = RankSpeed(step_s=0.02, elements=4096)
    played = asyncio.run(play(tmp_path / "run", config, peers=3, kills=1, pace=pace))
    assert played.digests_equal
    assert played.finished == 3
    assert played.rounds == 40
    (loss,) = played.losses
    assert loss.name in {"p0", "p1", "p2"}


def test_a_wait_that_is_too_long_names_what_it_waited_for() -> None:
    async def wait() -> None:
        async with within(0.01, "a leader"):
            await asyncio.Event().wait()

    with pytest.raises(LowcommError, match=r"0.01 s passed without a leader"):
        asyncio.run(wait())
