"""What no message could say is refused where a person types it."""

from pathlib import Path

import pytest

from lowcomm.config.schema import RunConfig, load_config
from lowcomm.startup.agreement import accepted, run_entry
from peers.sockets.address import parse_address
from protocols.messages import log_entries as e
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId, TensorSpec
from protocols.types.limits import PEERS_MAX, ROUNDS_MAX
from protocols.wire.codec import readable_bytes

LAYOUT = (TensorSpec(0, "w", (8,), 0),)
FOUNDER = PeerId("alpha.00000001")
STEPS = ['run.method={name="allreduce"}']


def entry_of(*overrides: str) -> e.Run:
    run = load_config(None, ["run.seed=1", *overrides]).run
    assert run is not None
    accepted(run)
    return run_entry(run, run_id=1, founder=FOUNDER, corpus_digest="c" * 64, layout=LAYOUT)


@pytest.mark.parametrize(
    "overrides",
    [
        [f"run.peers_min={PEERS_MAX}"],
        [f"run.outer_steps={ROUNDS_MAX}"],
        [f"run.seed={(1 << 63) - 1}"],
        ["run.method.inner_steps=16777216"],
        ["run.data.batch=268435456", "run.data.window=1", "run.method.inner_steps=1"],
        [*STEPS, f"run.outer_steps={ROUNDS_MAX}"],
        ['run.method={name="allreduce", snapshot_every_steps=2147483648}'],
    ],
)
def test_at_the_limits_the_entry_can_be_read(overrides: list[str]) -> None:
    assert len(readable_bytes(e.LogEntry(1, 1, entry_of(*overrides)))) < 1 << 20


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ([f"run.peers_min={PEERS_MAX + 1}"], "run.peers_min must be at most 512, got 513"),
        ([f"run.outer_steps={ROUNDS_MAX + 1}"], "run.outer_steps must be at most 2147483648"),
        (["run.method.inner_steps=16777217"], "run.method.inner_steps must be at most 16777216"),
        (["run.data.batch=268435457"], "run.data.batch must be at most 268435456"),
        (["run.data.batch=1000000", "run.method.inner_steps=1000"], "batch * run.method.inner"),
        (["run.data.batch=1000000", "run.method.inner_steps=200"], ""),
        ([f'run.name="{"n" * 65}"'], "run.name names a directory: use up to 64 letters"),
        (
            ['run.method={name="allreduce", snapshot_every_steps=4294967296}'],
            "run.method.snapshot_every_steps must be at most 2147483648",
        ),
    ],
)
def test_beyond_a_limit_it_is_refused_by_its_key(overrides: list[str], why: str) -> None:
    if not why:
        entry_of(*overrides)
        return
    with pytest.raises(ConfigError) as caught:
        entry_of(*overrides)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["h" * 124, "\u00e4" * 123])
def test_an_address_is_as_long_as_the_log_can_hold(host: str) -> None:
    parse_address(f"{host[:123]}:4711", key="node.advertise")
    with pytest.raises(ConfigError, match=r"^node\.advertise: an address is one line of at most"):
        parse_address(f"{host}{host}:4711", key="node.advertise")
    with pytest.raises(ConfigError, match=r"^node\.advertise: an address is one line of at most"):
        parse_address("a\x1b:4711", key="node.advertise")


def test_a_text_that_is_too_long_for_the_entry_is_a_value_that_somebody_typed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def too_long(_: RunConfig) -> str:
        return "x" * (1 << 17)

    monkeypatch.setattr("lowcomm.startup.agreement.run_to_json", too_long)
    with pytest.raises(ConfigError, match=r"this run cannot begin: .*Run\.run_json: expected a"):
        entry_of()
