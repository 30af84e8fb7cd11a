"""What the processes of these tests run: ranks without torch, launchers, a whole daemon.

Made importable by PYTHONPATH. A rank behaves well, but for the last one of attempt 0, which does
what the variable BEHAVIOUR names.
"""

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
from typing import NoReturn

from peers.ipc.messages import NONE, Answer, Boundary, Contributed, Result, StepMetrics, TensorPlace
from peers.ipc.rank_client import RankClient
from peers.ipc.shared_memory import COPIES, Slots, SlotsShape
from peers.processes.supervisor import ZygoteSpawner
from peers.ranks.config import RanksConfig
from peers.ranks.events import GroupReady, RankEvent, RankMetrics, RanksLayout
from peers.ranks.rank_group import RankGroup

ELEMENTS = 1 << 10
TENSORS = (TensorPlace(0, "a", (2, ELEMENTS // 4), 0), TensorPlace(0, "b", (ELEMENTS // 2,), 512))
STEPS = 3
EXIT_WRONG_BYTES = 9
EXIT_UNFIT = 10
WORDS = 100
"""What a talkative rank says for each result: more than an inbox has room for."""


def rank() -> int:
    """Train until told to finish."""
    number, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["LOWCOMM_ATTEMPT"])
    odd = number == ranks - 1 and attempt == 0
    behaviour = os.environ.get("BEHAVIOUR", "") if odd else ""
    if behaviour == "exit":
        return 7
    client = RankClient(
        os.environ["LOWCOMM_SOCKET"], rank=number, world_size=ranks, attempt=attempt
    )
    if behaviour == "unfit":
        client.unfit("9 fragments of 2 tensors")
        return EXIT_UNFIT
    if behaviour == "early":
        tell_pid(client, loss=0.0)
    elements = ELEMENTS // ranks + (behaviour == "layout")
    client.attach(TENSORS, elements=elements)
    tell_pid(client, loss=0.0)
    if behaviour:
        misbehave(client, behaviour)
    step = 0
    while True:
        result = client.wait_result(0)
        view = client.result(result)
        if bytes(view) != bytes([result.version]) * (4 * ELEMENTS):
            return EXIT_WRONG_BYTES
        client.check_untorn(result)
        for word in range(WORDS if behaviour == "talkative" else 0):
            client._link.send(StepMetrics(step=word, tokens=0, loss=2.0, tokens_per_s=0.0))
        if result.evaluate and number == 1:  # As in a pipeline: its last stage has the loss.
            client.evaluated(loss=1.5, windows=4, sample="rank 1")
        if result.snapshot:
            client.snapshotted(result.snapshot)
        if result.finish:
            client.close()
            return 0
        step = train(client, step)
        write_shard(client, attempt, ranks)
        if behaviour == "torn":
            tell_pid(client, loss=1.0)
            hang()
        client.contribute(0, steps=STEPS, tokens=STEPS * 100)
        if behaviour == "leave":
            os._exit(7)
        if os.environ.get("TRAINS") == str(step):
            client.close(done=True)
            return 0


def train(client: RankClient, step: int) -> int:
    """STEPS inner steps; the new count."""
    for steps in range(1, STEPS + 1):
        client.count_step(step + steps)
        if client.ask_boundary(steps, due=False, left=(0,)) != (0 if steps == STEPS else None):
            raise AssertionError(f"contribute after {steps} steps?")
    return step + STEPS


def write_shard(client: RankClient, attempt: int, ranks: int) -> None:
    """Its part of the fragment: bytes that tell the attempt and the rank."""
    view = client.contribution(0)
    size = len(view) // ranks
    start = client.rank * size
    view[start : start + size] = bytes([16 * attempt + client.rank]) * size


def tell_pid(client: RankClient, *, loss: float) -> None:
    """A test learns whom to kill, and which port the attempt has."""
    port = int(os.environ["MASTER_PORT"])
    client.metrics(step=os.getpid(), tokens=port, loss=loss, tokens_per_s=0.0)


def misbehave(client: RankClient, behaviour: str) -> None:
    """One thing that ends the attempt, unless the loop does it later."""
    bad_frames = {
        "malformed": struct.pack("<I", 1) + b"\xc1",
        "oversized": struct.pack("<I", 1 << 21),
    }
    if behaviour in bad_frames:
        client._link._socket.sendall(bad_frames[behaviour])
        hang()
    if behaviour in {"flagless", "generation"}:
        client.wait_result(0)
        generation = 1 + (behaviour == "generation")
        client._link.send(
            Contributed(fragment=0, generation=generation, steps=STEPS, tokens=STEPS * 100)
        )
        hang()
    if behaviour == "unfit later":
        client.wait_result(0)
        client.unfit("9 fragments of 2 tensors")
    if behaviour == "raise":
        raise RuntimeError("a bug of the training program")
    if behaviour == "close":
        client.close()
        hang()
    if behaviour == "stop":
        client.wait_result(0)
        os.kill(os.getpid(), signal.SIGSTOP)


def hang() -> NoReturn:
    """Until killed."""
    while True:
        signal.pause()


def wait() -> int:
    """A rank that says nothing."""
    hang()


def leave_a_child() -> int:
    """A rank that ends before its child."""
    child = subprocess.Popen(["sleep", "100"])
    with open(os.environ["PID_FILE"], "w") as file:
        file.write(str(child.pid))
    return 0


def chatter() -> int:
    """A rank that shows its variables and signals, and prints without a newline."""
    sys.stdout.write(f"{os.environ['RANK']} {os.environ.get('OMP_NUM_THREADS')} ")
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        return 1
    return int(os.environ.get("CODE", "0"))


def launch() -> None:
    """As torchrun does: each rank in a session of its own; ends with the first failure."""
    ranks = int(os.environ["WORLD_SIZE"])
    command = [sys.executable, "-c", "import rank_programs as p; raise SystemExit(p.rank())"]
    children = [
        subprocess.Popen(command, env={**os.environ, "RANK": str(number)}, start_new_session=True)
        for number in range(ranks)
    ]
    codes = [child.wait() for child in children]
    sys.exit(max(abs(code) for code in codes))


def daemon() -> None:
    """A daemon with two ranks; prints the pids of the ranks and of their zygote."""
    asyncio.run(_daemon())


async def _daemon() -> None:
    pids: list[int] = []

    def on_event(event: RankEvent) -> None:
        if isinstance(event, RanksLayout):
            slots = Slots.create(SlotsShape(2, (4 * ELEMENTS,)))
            group.provide(slots, initial=False, slot=0, rank_state="")
        elif isinstance(event, GroupReady):
            place = fill_with(group.slots, 1)
            group.post_result(
                Result(
                    fragment=0,
                    place=place,
                    kind="full",
                    version=1,
                    inner_step=0,
                    boundary_steps=1,
                )
            )
        elif isinstance(event, RankMetrics):
            with open(f"/proc/{event.step}/stat") as file:
                zygote = int(file.read().split(")")[1].split()[1])
            pids.append(event.step)
            if len(pids) == 2:
                sys.stdout.write(json.dumps([zygote, *pids]) + "\n")
                sys.stdout.flush()

    group = RankGroup(
        RanksConfig(ranks=2),
        spawner=ZygoteSpawner(["peers.ipc.rank_client"], target="rank_programs:rank"),
        on_event=on_event,
        decide_boundary=decide_boundary,
        answer=lambda _: "{}",
    )
    group.configure(run="{}", node="{}", corpus="")
    await group.run()


def decide_boundary(question: Boundary) -> Answer:
    """Contribute after STEPS steps."""
    return Answer(fragment=0 if question.steps == STEPS else NONE)


def fill_with(slots: Slots | None, byte: int) -> int:
    """The same byte everywhere, in the place that it returns."""
    assert slots is not None
    place = byte % COPIES
    slots.begin_result(0, place)
    view = slots.result(0, place)
    view[:] = bytes([byte]) * len(view)
    return place
