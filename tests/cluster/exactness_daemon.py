"""`lowcomm peer` that also leaves behind what no event tells: exactness_daemon.py TARGET peer ...

TARGET is the ranks' program ("module:function"); "" is lowcomm's worker. At its end daemon.json in
the node's directory holds the manifests of each round that this peer applied, by peer id, and the
modules that this process has imported. Must NOT change what the daemon does.
"""

import json
import sys

from lowcomm.cli import main
from lowcomm.daemon import daemon
from lowcomm.rank_control import rank_control
from protocols.types.ids import Stamp

RECORD = "daemon.json"


class RecordingDaemon(daemon.Daemon):
    """Writes RECORD when it has ended."""

    def applied(self, stamp: Stamp, state_digest: str) -> None:
        """Called by the driver for each committed round."""
        super().applied(stamp, state_digest)
        commit = self.context.core.run_state.commit(stamp.fragment, stamp.round)
        if commit is not None:
            MANIFESTS[str(stamp.round)] = {each.peer: each.manifest for each in commit.contributors}

    async def run(self) -> int:
        """Until the run is finished."""
        code = await super().run()
        record = {"manifests": MANIFESTS, "modules": sorted(sys.modules)}
        (self.context.path / RECORD).write_text(json.dumps(record), encoding="utf-8")
        return code


MANIFESTS: dict[str, dict[str, str]] = {}

if __name__ == "__main__":
    target = sys.argv.pop(1)
    if target:
        rank_control.WORKER = target  # pyright: ignore[reportConstantRedefinition]
    daemon.Daemon = RecordingDaemon
    main.main()
