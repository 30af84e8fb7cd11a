"""The simplest means: one namespace with a loopback that all peers share as their line, shaped by
tbf.

A process of its own (`python -m sims.wan.shared`, started by control.Helper) that holds the
namespace. Must NOT emulate more than tbf does: there is no delay, no loss, and no direction.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sims.wan.control import Owner, links_from_json, refusing
from sims.wan.link import LinkCounters, WanError, WanLink
from sims.wan.namespaces import new_namespace, require_root

HOST = "127.0.0.{}"
BURST_BYTES = 128 * 1024
"""More than the 64 KiB that loopback's MTU lets through as one packet."""
TC_TIMEOUT_S = 10.0


class ShapedLine:
    """The shaped loopback of this process's namespace."""

    def __init__(self, link: WanLink) -> None:
        self._tc = shutil.which("tc") or ""
        if not self._tc:
            raise WanError("a shaped loopback needs `tc`: apt install iproute2")
        self._link = WanLink()
        self.change(link)

    def change(self, link: WanLink) -> None:
        """Set the rate and the queue, the only properties of tbf. Raises WanError."""
        if link.rate_bps is None and self._link.rate_bps is not None:
            self._run("qdisc", "del", "dev", "lo", "root")
        if link.rate_bps is not None:
            shaped = ["rate", f"{link.rate_bps:.0f}bit", "burst", str(BURST_BYTES)]
            shaped += ["latency", f"{link.queue_s * 1e6:.0f}us"]
            self._run("qdisc", "replace", "dev", "lo", "root", "tbf", *shaped)
        self._link = link

    def handle(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            for link in links_from_json(request.get("links", ())).values():
                self.change(link)
        except WanError as error:
            return {"error": str(error)}
        if "counters" not in request:
            return {}
        counters = asdict(self._counters())
        return {"counters": [[0, 0, counters]], "cpu_s": 0.0, "late_max_s": 0.0}

    def _counters(self) -> LinkCounters:
        """Counters of all peers together."""
        if self._link.rate_bps is None:
            return LinkCounters()
        (told,) = json.loads(self._run("-s", "-j", "qdisc", "show", "dev", "lo", "root"))
        drops = int(told.get("drops", 0))
        packets = int(told.get("packets", 0)) + drops
        return LinkCounters(packets=packets, bytes=int(told.get("bytes", 0)), overflowed=drops)

    def _run(self, *arguments: str) -> str:
        command = [self._tc, *arguments]
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=TC_TIMEOUT_S, check=False
        )
        if result.returncode != 0:
            raise WanError(f"`{' '.join(command)}` fails: {result.stderr.strip()}")
        return result.stdout


def main(argv: Sequence[str]) -> None:
    """Make the namespace, report its path, and answer requests."""
    owner = Owner.from_arguments(argv)
    config = owner.first()
    with refusing(owner):
        require_root()
        namespace = new_namespace()  # This process stays in it, so that `tc` works there.
        line = ShapedLine(next(iter(links_from_json(config["links"]).values())))
    path = f"/proc/{os.getpid()}/fd/{namespace}"
    hosts = [HOST.format(peer + 1) for peer in range(config["peers"])]
    owner.answer({"namespaces": [path] * config["peers"], "hosts": hosts})
    owner.serve(line.handle)


if __name__ == "__main__":
    main(sys.argv[1:])
