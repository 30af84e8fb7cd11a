"""Trains the settings without a kept outcome, a few at a time, each in a process of its own.

If the parent ends, all end; only the runs in progress are lost. Must NOT choose what is trained.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparing.kept import kept
from benchmarks.comparing.settings import Setting, recorded
from benchmarks.comparing.training import warm_file
from lowcomm.data import Corpus
from lowcomm.reports import seconds_text
from peers.processes import dying_with_us
from sims.terminal import bar

MODULE = "benchmarks.comparing.training"
LINE_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class WorkFiles:
    """Files, and the number of processes."""

    outcomes: Path
    """File of the outcomes."""
    text: Path
    """Folder of the built text and of the warm starts."""
    jobs: int
    """Number of processes at a time."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training process."""

    argv: Sequence[str]
    about: str
    tokens: int
    """Number of tokens that it trains on."""


def make_all(settings: Sequence[Setting], place: WorkFiles, corpus: Corpus) -> list[str]:
    """Train all settings that are not kept, warm starts first. Returns one line for each failure; a
    setting without a kept outcome is tried again in the next call."""
    missing = [one for one in settings if kept(place.outcomes, one) is None]
    begins = {warm_file(one, corpus, place.text): one for one in missing if one.warm_steps}
    warm = [_job(one, place, warm=True) for path, one in begins.items() if not path.exists()]
    own = [_job(one, place, warm=False) for one in missing]
    if not missing:
        return []
    failed: list[str] = []
    begun, left, done = time.monotonic(), sum(job.tokens for job in (*warm, *own)), 0
    with bar("runs", len(warm) + len(own)) as (advance, tell):
        for wave in (warm, own):
            with ThreadPoolExecutor(place.jobs) as pool:
                futures = {pool.submit(_train, job): job for job in wave}
                try:
                    for future in as_completed(futures):
                        job, error = futures[future], future.result()
                        done += job.tokens
                        rate = done / (time.monotonic() - begun)
                        rest = f"about {seconds_text((left - done) / rate)} left"
                        tell(f"{job.about}: {error or 'done'}; {rate:.0f} tokens/s, {rest}")
                        failed += [f"{job.about}: {error}"] if error else []
                        advance(rest)
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
    return failed


def _job(setting: Setting, place: WorkFiles, *, warm: bool) -> Job:
    argv = [
        *(sys.executable, "-m", MODULE, *(["--warm"] if warm else [])),
        *(json.dumps(recorded(setting)), str(place.outcomes), str(place.text)),
    ]
    if warm:
        tokens = setting.warm_steps * setting.nodes * setting.step_tokens
        return Job(argv, f"warm start, seed {setting.seed}", tokens)
    about = f"{setting.method.name}, {setting.world}, seed {setting.seed}"
    return Job(argv, f"{about}, lr {setting.optimizer.lr:g}", setting.own_tokens)


def _train(job: Job) -> str:
    """Run the process; return its error, or ""."""
    # One thread each: with more, the threads of two processes would wait for each other.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        dying_with_us(job.argv), env=env, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode == 0:
        return ""
    told = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return told[-1][:LINE_CHARS_MAX]
