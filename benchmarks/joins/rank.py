"""A rank under a real daemon that rests instead of training, and records its waits.

Its clock is that of the daemons' event files. Must NOT import torch.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from lowcomm import attach
from lowcomm.methods import RoundMethod
from peers.ipc import Result
from sims.paced import FRAGMENT, tensors


class JoinRank:
    """Contributes every `train_s` seconds, until its daemon ends."""

    def __init__(self, *, elements: int, train_s: float, told: Path) -> None:
        self._train_s = train_s
        self._told = told
        self._peer = attach()
        self._client = self._peer.client
        self._theta_P = np.zeros(elements, np.float32)
        attached = self._peer.join(tensors(elements), elements=elements)
        if attached.initial:
            self._contribute(steps=0)
        self._take(self._client.wait_result(FRAGMENT))

    def run(self) -> None:
        run, number = self._peer.run, 0
        method = run.method
        assert isinstance(method, RoundMethod)
        with self._told.open("a", encoding="utf-8") as file:
            while not self._peer.finished:
                time.sleep(self._train_s)
                self._theta_P += np.float32(2.0**-20)
                number += 1
                self._client.count_step(number)
                self._contribute(steps=method.inner_steps)
                handed = time.time()
                result = self._client.wait_result(FRAGMENT)
                self._take(result)
                line = {"round": result.version, "handed": handed, "received": time.time()}
                file.write(json.dumps(line) + "\n")
                file.flush()

    def _contribute(self, *, steps: int) -> None:
        written_P = np.frombuffer(self._client.contribution(FRAGMENT), np.float32)
        written_P[:] = self._theta_P
        run = self._peer.run
        tokens = steps * run.data.batch * run.data.window
        self._client.contribute(FRAGMENT, steps=steps, tokens=tokens)

    def _take(self, result: Result) -> None:
        published_P = np.frombuffer(self._client.result(result), np.float32)
        if result.kind == "full":
            self._theta_P[:] = published_P
        else:
            self._theta_P += published_P
        self._client.check_untorn(result)
        if result.finish:
            self._peer.finish(evaluate=result.evaluate)


if __name__ == "__main__":
    JoinRank(elements=int(sys.argv[1]), train_s=float(sys.argv[2]), told=Path(sys.argv[3])).run()
