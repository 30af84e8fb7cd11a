"""One command for all benchmarks: `python -m benchmarks NAME [OPTIONS]`.

Each NAME is a module of this package with a function `main`, which declares its options. Must NOT
measure anything itself.
"""

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module

from sims.terminal import run

BENCHMARKS = {
    "exchange": "one exchange, beside gloo, torchft and hivemind: time, CPU, bytes, memory, error",
    "peers": "the time of an exchange against the number of peers",
    "steps": "one step of a per-step method, beside gloo",
    "joining": "the time of a join, and its cost for the members",
    "waiting": "how long nodes of different speeds wait for each other",
    "plan": "the shares of `lowcomm plan` beside those of runs on emulated lines",
    "memory": "bytes that a daemon needs for an exchange, or in runs of whole methods",
    "ranks": "memory of the ranks of a sharded node, beside that of a node's only rank",
    "codecs": "bytes, time and error of each codec",
    "arithmetic": "the compiled loops beside numpy",
    "gpu": "copies between a GPU and the daemon, and training with a peer attached",
    "core": "CPU time of the protocol core for each event",
    "methods": "all methods trained side by side: loss, bytes, time",
    "bars": "all figures that this project asks of itself: asked, measured, met",
}


def describe() -> str:
    """The text of --help."""
    rows = [f"  {name:<12}{purpose}" for name, purpose in BENCHMARKS.items()]
    usage = "Usage: python -m benchmarks NAME [OPTIONS]"
    examples = (
        "  python -m benchmarks exchange --peers 4 --codec int8 --json",
        "  python -m benchmarks joining --help",
    )
    return "\n".join((usage, "", "Benchmarks:", *rows, "", "Examples:", *examples))


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark that the first argument names. A wrong name: one line, exit status 2."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(describe())
        return
    name, *options = arguments
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(BENCHMARKS)}"
        print(f"error: there is no benchmark {name!r}; {hint}", file=sys.stderr)
        sys.exit(2)
    sys.argv[1:] = options
    run(import_module(f"benchmarks.{name}").main, name=f"python -m benchmarks {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
