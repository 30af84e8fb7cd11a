"""The errors of ssh, as a person reads them."""

import asyncssh
import pytest

from lowcomm.launching.hosts_file import HostConfig
from lowcomm.launching.ssh_transport import explained, in_home

HOST = HostConfig(host="me@gpu1", ssh_port=2222)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            asyncssh.HostKeyNotVerifiable("Host key is not trusted"),
            "its host key is not in known_hosts: compare it once with `ssh me@gpu1 -p 2222`",
        ),
        (
            asyncssh.PermissionDenied("Permission denied"),
            "it takes no key of yours: `ssh me@gpu1 -p 2222` must work without a password",
        ),
        (asyncssh.ConnectionLost("Connection lost"), "the ssh connection failed: Connection lost"),
        (TimeoutError(), "no answer to ssh within 20 s: try `ssh me@gpu1 -p 2222`"),
        (
            ConnectionRefusedError(111, "Connection refused"),
            "ssh cannot connect: Connection refused: try `ssh me@gpu1 -p 2222`",
        ),
    ],
)
def test_an_error_says_the_cause_and_what_to_try(error: Exception, says: str) -> None:
    assert explained(error, HOST) == says


def test_a_tilde_is_the_directory_in_which_ssh_begins() -> None:
    assert in_home("~/venv/bin/python") == "venv/bin/python"
    assert in_home("/opt/python") == "/opt/python"
