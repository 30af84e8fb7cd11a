"""What `lowcomm launch` costs before it is asked for."""

import subprocess
import sys

SLOW = "{'asyncssh', 'asyncio', 'rich', 'pydantic', 'torch', 'tomllib'}"


def loaded(*modules: str) -> str:
    code = f"import sys, {', '.join(modules)}; print(*sorted({SLOW} & sys.modules.keys()))"
    return subprocess.check_output([sys.executable, "-c", code], text=True)


def test_the_command_line_knows_it_without_its_libraries() -> None:
    assert loaded("typer") == loaded("typer", "lowcomm.launching.command")


def test_hosts_that_are_this_machine_need_no_ssh() -> None:
    found = loaded("lowcomm.launching.launch", "lowcomm.launching.watch").split()
    assert "asyncio" in found
    assert not {"asyncssh", "torch"} & set(found)


def test_a_host_s_own_half_loads_neither_a_view_nor_ssh() -> None:
    found = loaded("lowcomm.launching.host_side", "lowcomm.launching.supervisor").split()
    assert not {"asyncssh", "torch", "rich"} & set(found)
