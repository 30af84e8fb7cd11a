"""A peer that kills itself: after just so many chunks, all of which arrive."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from peers.fault_injection import InjectedFault, Lie, parse_fault
from protocols.interface import ReducePart
from protocols.messages.peer import Chunk, ContributionChunk, ResultChunk
from protocols.types.errors import ConfigError
from protocols.types.ids import PeerId, Stamp
from tests.peers.mesh_node import ALPHA, BETA, EVE, Node, Up

ROOT = Path(__file__).parents[2]
CHUNKS = 40
"""Of each round, to each peer."""
VICTIM = """
import asyncio, sys
from dataclasses import replace
from peers.fault_injection import FaultInjector, parse_fault
from peers.connections.mesh import Mesh
from protocols.types.ids import Contributor, PeerId, Stamp
from protocols.messages.peer import ContributionChunk, ResultChunk
from tests.peers.mesh_node import BETA, Node

async def main(fault, *addresses):
    node = Node(BETA)
    injector = FaultInjector(parse_fault(fault), lambda what: print(what, flush=True))
    node.mesh = Mesh(node, on_chunk_sent=injector.chunk_sent)
    for address in addresses:
        node.mesh.connect(address, peer="")
    await node.until(lambda: len(node.mesh.sessions) == len(addresses))
    stamp, size = Stamp(7, 2, 1, 0, 6, 0), 1 << 18
    who = Contributor(BETA, 1, 1, "a" * 32)
    for round_ in (6, 7, 8):
        for peer in node.mesh.sessions:
            now = replace(stamp, round=round_)
            for n in range(20):
                slice_ = ContributionChunk(now, n, who, 0, size)
                result = ResultChunk(now, n, (who,), "b" * 32, 0, size, 0, 1, False)
                node.send_chunks(peer, [(slice_, bytes(4 * size)), (result, bytes(4 * size))])
    await asyncio.sleep(30)

asyncio.run(main(*sys.argv[1:]))
"""


class Counter(Node):
    """Counts what arrives whole, by round."""

    def __init__(self, peer: PeerId) -> None:
        super().__init__(peer)
        self.rounds: list[int] = []

    def place(self, peer: PeerId, chunk: Chunk, size: int) -> memoryview | None:
        return memoryview(bytearray(size))

    def chunk_received(self, peer: PeerId, chunk: Chunk) -> None:
        assert isinstance(chunk, ContributionChunk | ResultChunk)
        self.rounds.append(chunk.stamp.round)


@pytest.mark.parametrize("text", ["kill@round=7,chunk=2", "kill@round=1,chunk=1"])
def test_a_fault_is_read_and_written_in_one_form(text: str) -> None:
    assert str(parse_fault(text)) == text
    assert parse_fault("kill@round=7,chunk=2") == InjectedFault(7, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kill",
        "kill@round=7",
        "kill@round=7,chunk=0",
        "kill@round=0,chunk=1",
        "kill@round=-1,chunk=1",
        "kill@round=7,chunk=2 ",
        "kill@round=7,chunk=2\n",
        "kill@chunk=2,round=7",
        "kill@round=\u0667,chunk=2",
        "pause@round=7,chunk=2",
        "kill@round=" + "9" * 5000 + ",chunk=1",
    ],
)
def test_any_other_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--fault .* for example kill@round=7,chunk=2"):
        parse_fault(text)


@pytest.mark.asyncio
@pytest.mark.parametrize(("chunk", "receivers"), [(1, 1), (7, 1), (50, 2)])
async def test_it_dies_after_that_chunk_and_everything_before_it_arrives(
    chunk: int, receivers: int
) -> None:
    """While its peers send to it: what it has not read resets its connections when it dies."""
    counters = [Counter(peer) for peer in (ALPHA, EVE)[:receivers]]
    for counter in counters:
        counter.mesh.listen(counter.socket)
    fault = f"kill@round=7,chunk={chunk}"
    victim = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        VICTIM,
        fault,
        *(counter.address for counter in counters),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        for counter in counters:
            await counter.until(lambda counter=counter: counter.seen)
            assert counter.seen == [Up(BETA)]
            for _ in range(20):
                counter.stream(BETA)
        said, _ = await asyncio.wait_for(victim.communicate(), 15)
        assert victim.returncode == -signal.SIGKILL
        assert said.decode() == fault + "\n"
        for counter in counters:
            await counter.until(lambda counter=counter: len(counter.seen) == 2)
    finally:
        if victim.returncode is None:
            victim.kill()
            await victim.wait()
        for counter in counters:
            await counter.mesh.close()
            if counter.socket is not None:
                counter.socket.close()
    rounds = [round_ for counter in counters for round_ in counter.rounds]
    assert rounds.count(7) == chunk
    if receivers == 1:
        assert rounds.count(6) == CHUNKS
        assert rounds.count(8) == 0


@pytest.mark.parametrize(
    "text", ["lie@round=0,percent=1", "lie@round=1,percent=101", "lie@round=1"]
)
def test_a_lie_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="lie@round=R,percent=P"):
        parse_fault(text)


@pytest.mark.parametrize(
    ("percent", "start", "false"), [(100, 0, 16), (50, 0, 8), (1, 0, 1), (0, 0, 1), (0, 512, 0)]
)
def test_a_lie_changes_its_share_of_a_piece_in_its_round(
    percent: int, start: int, false: int
) -> None:
    text = f"lie@round=3,percent={percent}"
    lie = parse_fault(text)
    assert isinstance(lie, Lie)
    assert str(lie) == text
    for round_, wanted in ((2, 0), (3, false)):
        piece = bytearray(16 * 256)
        command = ReducePart(Stamp(1, 2, 1, 0, round_, 0), 0, 0, 1024, ())
        lie.falsify(command, start, memoryview(piece))
        assert sum(piece) == wanted
