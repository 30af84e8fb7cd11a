"""The systems that lowcomm is compared with: how each is installed, and which codecs it has.

Must NOT import torch, nor any of these systems.
"""

import importlib.metadata
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from benchmarks.exchanging.systems import ExchangeOrder, Side, System, workers
from protocols.types import ConfigError

TORCHFT = ("torchft-nightly==2026.10.26",)
HIVEMIND = ("hivemind==1.1.12", "numpy==2.2.6")
"""With numpy 2.4 hivemind fails to decode 8-bit values: it logs that, and averages without the
others."""
HIVEMIND_CODECS = ("fp32", "fp16", "int8")


def others() -> dict[str, System]:
    """The systems by name."""
    gloo = System(
        name="gloo",
        version=f"torch {importlib.metadata.version('torch')}",
        start=_starts("gloo"),
        copies=1,
        base_bytes=300 << 20,
        codec=lambda _: "fp32",
        note="all_reduce, then a division; no codecs, no commit, no faults; TCP, not encrypted",
    )
    tcp = System(
        name="tcp",
        version="the kernel's",
        start=_starts("tcp"),
        copies=2,
        base_bytes=100 << 20,
        codec=lambda _: "fp32",
        payload_bytes=_all_to_all,
        note="one connection for each pair, all to all; not encrypted",
    )
    bare = System(
        name="bare",
        version="ours",
        start=_starts("bare"),
        copies=6,
        base_bytes=100 << 20,
        codec=lambda _: "fp32",
        note="our arithmetic over plain sockets in one process a peer; no log, no commit, no "
        "faults, not encrypted",
    )
    torchft = System(
        name="torchft",
        version=TORCHFT[0].replace("==", " "),
        requirements=TORCHFT,
        start=_starts("torchft"),
        copies=1,
        base_bytes=300 << 20,
        codec=_torchft_codec,
        note="quorum, all_reduce by gloo, vote; TCP, not encrypted",
    )
    hivemind = System(
        name="hivemind",
        version=HIVEMIND[0].replace("==", " "),
        requirements=HIVEMIND,
        start=_starts("hivemind"),
        copies=7,
        base_bytes=900 << 20,
        codec=_hivemind_codec,
        note="matchmaking, then an all-reduce in parts; encrypted",
    )
    return {one.name: one for one in (gloo, tcp, bare, torchft, hivemind)}


def _starts(name: str) -> Callable[[ExchangeOrder], AbstractAsyncContextManager[Side]]:
    return lambda order: workers(order, f"benchmarks.exchanging.{name}_worker", name=name)


def _all_to_all(codec: str, elements: int) -> int | None:
    """None: more than 8 bytes an element with more than two peers, and their number is not known
    here."""
    del codec, elements
    return None


def _torchft_codec(name: str) -> str:
    if name != "fp32":
        raise ConfigError(f"torchft has no {name} on CPUs: it would send fp32 without a warning")
    return name


def _hivemind_codec(name: str) -> str:
    if name not in HIVEMIND_CODECS:
        raise ConfigError(f"hivemind: no {name}, only {', '.join(HIVEMIND_CODECS)} (uniform)")
    return name
