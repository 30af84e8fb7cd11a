"""Two nodes exchange over TLS, with a witness beside them, on whatever versions are installed.

`make test-lowest` runs it where every dependency but torch is at its lowest version, so that it
needs neither torch nor pytest. Must NOT install anything.
"""

import json
import sys
import tempfile
import urllib.request
from pathlib import Path

from lowcomm.reports.events import MetricsListening, Witness
from tests.cluster.paced_shell import PacedShell, counts_together
from tests.cluster.running import ending, of, token_of, until, write_config

WITHIN_S = 60.0


def main() -> int:
    """0, or an AssertionError and what the nodes wrote."""
    with (
        tempfile.TemporaryDirectory(prefix="lowest") as place,
        ending(PacedShell(Path(place))) as run,
    ):
        try:
            play(run)
        except AssertionError:
            for command in run.commands:
                sys.stderr.write(command.out + command.err)
            raise
    return 0


def play(run: PacedShell) -> None:
    """Rounds of two, their figures, and the end that each is told."""
    write_config(run.directory, peers=2, rounds=100_000)
    alpha, beta, watch = (run.directory / name for name in ("alpha", "beta", "watch"))
    measured = ("--set", 'node.metrics="127.0.0.1:0"')
    first = run.node("alpha", "--new", *measured)
    token = token_of(alpha)
    second = run.node("beta", "--join", token)
    counts_together(beta, ("alpha", "beta"), within_s=WITHIN_S)
    where = ("--set", f"node.directory={json.dumps(str(watch))}", "--set", "node.name=watch")
    words = token_of(alpha, witness=True)
    third = run.start("witness", "--join", words, *where)
    until(lambda: of(Witness, alpha), within_s=WITHIN_S, what="a witness")
    address = of(MetricsListening, alpha)[-1].address
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        assert b"lowcomm_sent_bytes_total" in answer.read()
    for command in (run.run("status", str(run.directory)), run.run("--help")):
        assert command.popen.returncode == 0, command.err
    for node in (third, second, first):
        node.popen.terminate()
        assert node.wait(within_s=20) == 143, node.err
    for command in run.commands:
        assert "Traceback" not in command.err, command.err


if __name__ == "__main__":
    sys.exit(main())
