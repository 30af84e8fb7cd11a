"""The doors of the rooms: each export can be imported, and no module is loaded before that."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from protocols.lazy_exports import lazy_exports

ROOT = Path(__file__).parent.parent.parent
DOORS = [
    ".".join(file.parent.relative_to(ROOT).parts)
    for floor in ("protocols", "peers", "lowcomm", "sims")
    for file in sorted((ROOT / floor).glob("*/__init__.py"))
]


@pytest.mark.parametrize("room", DOORS)
def test_a_door_opens(room: str) -> None:
    module = importlib.import_module(room)
    module = __import__(room, fromlist=getattr(module, "__all__", ()))
    for name in getattr(module, "__all__", ()):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_a_name_is_resolved_when_it_is_first_asked_for() -> None:
    resolve = lazy_exports("protocols.types", {"ids": "PeerId Stamp", "missing": "Other"})
    from protocols.types import ids

    assert resolve("Stamp") is ids.Stamp
    with pytest.raises(ModuleNotFoundError):
        resolve("Other")
    with pytest.raises(AttributeError, match="has no attribute 'PEER'"):
        resolve("PEER")


def test_a_door_imports_no_module_of_its_room() -> None:
    program = """
import sys
import peers.ipc, protocols.types, lowcomm.training
rooms = ("peers.ipc.", "protocols.types.", "lowcomm.training.")
inside = [name for name in sys.modules if name.startswith(rooms)]
assert not inside, inside
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=ROOT)
