"""What `lowcomm launch` runs on each host: `python -m lowcomm.launching.host_side VERB DIRECTORY`.

    start    start the supervisor of this node's directory, unless it runs; the standard input has
             the request in JSON, or is empty: as before
    token    wait until the node listens, and print a join token
    watch    print the state of the node as a line of JSON each second, until the input ends
    stop     let the node leave the run, and wait for the end of its supervisor

Each but `watch` prints one JSON object; {"error": ...} if it could not. Secrets come and go by the
standard streams only. Must NOT decide for which hosts it is called, nor print anything else.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lowcomm.launching.supervisor import (
    COMMAND,
    LEAVE_S,
    LOG,
    STATE,
    TOKEN,
    read_state,
    supervises,
    supervisor_pid,
)
from lowcomm.reports.event_log import EVENTS
from lowcomm.startup.identity import read_record
from lowcomm.startup.running_status import ask
from peers.processes import own_module
from peers.storage import make_private, write_private
from protocols.types import ConfigError, LowcommError

CONFIG = "run.toml"
"""The run's configuration, at the host that founds the run."""
START_S = 10.0
LISTEN_S = 120.0
"""Seconds until the node that founds the run listens: it reads its corpus first."""
LOOK_S = 0.05
REPORT_S = 1.0
EVENT_BYTES_MAX = 128 << 10
"""Bytes of events in one line of `watch`; further ones come with the next line."""
LOG_BYTES_MAX = 64 << 20
"""A log that is larger when a supervisor starts is put aside, in place of the one before it."""
LAST_BYTES = 1500
"""Length of the end of a log that an error quotes."""


def start(directory: Path, request: Mapping[str, Any]) -> dict[str, object]:
    """Start the node's supervisor. `request`: `arguments` of `lowcomm`, `restarts`, and perhaps
    `config` and `token`, which are texts; empty: what an earlier request has left here. Raises
    LowcommError, OSError."""
    if supervises(directory):
        return {"pid": supervisor_pid(directory), "already": True}
    make_private(directory)
    for key, name in (("config", CONFIG), ("token", TOKEN)):
        if request.get(key):
            write_private(directory / name, str(request[key]).encode())
    if request:
        command = {"arguments": request["arguments"], "restarts": request["restarts"]}
        write_private(directory / COMMAND, json.dumps(command).encode())
    if not (directory / COMMAND).exists():
        raise ConfigError(f"{directory} was never started by `lowcomm launch`")
    (directory / STATE).unlink(missing_ok=True)
    log = directory / LOG
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.old"))
    argv = [*own_module("lowcomm.launching.supervisor"), str(directory)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    output = os.open(log, flags, 0o600)
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    finally:
        os.close(output)
    _await(
        lambda: read_state(directory) is not None or process.poll() is not None,
        within_s=START_S,
        what=f"the supervisor has not begun; {_last_words(directory)}",
    )
    if read_state(directory) is None:
        raise LowcommError(f"the supervisor ended at its start; {_last_words(directory)}")
    return {"pid": process.pid, "already": False}


def make_token(directory: Path, *, uses: int, hours: float) -> dict[str, object]:
    """A join token of the node in this directory. Raises LowcommError if it ends before it
    listens."""
    from lowcomm.startup.join_tokens import new_token

    def listens() -> bool:
        state = read_state(directory)
        if state is None or state.state in ("ended", "gone"):
            return True
        record = read_record(directory)
        return record is not None and record.pid == state.peer_pid and bool(record.address)

    _await(listens, within_s=LISTEN_S, what=f"it does not listen; {_last_words(directory)}")
    state = read_state(directory)
    if state is None or state.state in ("ended", "gone"):
        over = state is not None and state.code == 0
        if over:
            return {"finished": True}
        why = "" if state is None else state.why
        raise LowcommError(f"its peer does not run: {why}; {_last_words(directory)}")
    record = read_record(directory)
    assert record is not None, "the node listens"
    return {"token": new_token(directory, uses=uses, hours=hours), "address": record.address}


def report(directory: Path) -> dict[str, object]:
    """The state of the supervisor, the node's id, and its daemon's status (None: no answer)."""
    state = read_state(directory)
    try:
        record, status = read_record(directory), ask(directory)
    except ConfigError as error:
        return {"supervisor": asdict(state) if state else None, "problem": str(error)}
    return {
        "supervisor": asdict(state) if state else None,
        "peer": record.peer if record else "",
        "status": status,
    }


def watch(directory: Path, *, since: int) -> None:
    """Print reports, with the lines of the event log from byte `since` on; -1: only those that
    come after now."""
    path = directory / EVENTS
    if since < 0:
        since = path.stat().st_size if path.exists() else 0
    while True:
        events, since = new_lines(path, since)
        line = json.dumps({**report(directory), "events": events, "at": since})
        print(line, flush=True)  # noqa: T201
        ready, _, _ = select.select([sys.stdin], [], [], 0 if events else REPORT_S)
        if ready and not os.read(sys.stdin.fileno(), 4096):
            return


def new_lines(path: Path, since: int) -> tuple[list[str], int]:
    """(whole lines of a file from byte `since` on, the byte after them). If the file is shorter
    now, it is read from its beginning."""
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < since:
                since = 0
            file.seek(since)
            data = file.read(EVENT_BYTES_MAX)
    except OSError:
        return [], since
    whole = data[: data.rfind(b"\n") + 1]
    if not whole and len(data) == EVENT_BYTES_MAX:
        return [], since + len(data)  # No event is that long.
    return whole.decode(errors="replace").splitlines(), since + len(whole)


def stop(directory: Path) -> dict[str, object]:
    """Let the node leave its run; returns the last state of its supervisor. Raises
    LowcommError."""
    if supervises(directory):
        os.kill(supervisor_pid(directory), signal.SIGTERM)
        _await(
            lambda: not supervises(directory),
            within_s=LEAVE_S + START_S,
            what="its supervisor has not ended",
        )
    state = read_state(directory)
    return {"state": asdict(state) if state else None}


def _await(look: Callable[[], bool], *, within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not look():
        if time.monotonic() > deadline:
            raise LowcommError(f"after {within_s:g} s: {what}")
        time.sleep(LOOK_S)


def _last_words(directory: Path) -> str:
    """The end of the node's log, for an error."""
    log = directory / LOG
    try:
        data = log.read_bytes()[-LAST_BYTES:]
    except OSError:
        return "it has written no log"
    return f"its log, {log}, ends with:\n{data.decode(errors='replace').strip()}"


def main(verb: str, directory: Path, *more: str) -> None:
    """Do what the words of the command line say."""
    if verb == "watch":
        watch(directory, since=int(more[0]))
        return
    try:
        match verb:
            case "start":
                text = sys.stdin.read()
                answer = start(directory, json.loads(text) if text.strip() else {})
            case "token":
                answer = make_token(directory, uses=int(more[0]), hours=float(more[1]))
            case "stop":
                answer = stop(directory)
            case _:
                answer = {"error": f"unknown verb {verb}"}
    except (LowcommError, OSError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).expanduser(), *sys.argv[3:])
