"""Where a node listens, and what it tells others to dial."""

from dataclasses import replace

import pytest

from lowcomm.config.addresses import advertised, check_way, listen_at
from lowcomm.config.schema import NodeConfig
from protocols.state.tokens import Token
from protocols.types.errors import ConfigError

SEALED = Token(("10.1.2.3:4711",), (), b"r" * 32)
WITNESS = replace(SEALED, witness=True)
HERE = "127.0.0.1:4711"


def test_an_encrypted_node_may_listen_anywhere_and_join_anybody() -> None:
    check_way(NodeConfig(), SEALED)
    check_way(NodeConfig(listen="0.0.0.0:1", advertise="gpu1.example.org:1"), None)
    check_way(NodeConfig(listen="[::]:1"), SEALED)
    check_way(NodeConfig(listen="none"), SEALED)


@pytest.mark.parametrize(
    ("node", "token"),
    [
        (NodeConfig(insecure=True, listen="10.1.2.3:1"), None),
        (NodeConfig(insecure=True, advertise="gpu1.example.org:1"), None),
        (NodeConfig(insecure=True), Token(("10.1.2.3:1",))),
        (NodeConfig(insecure=True), Token((HERE, "10.1.2.3:1"))),
        (NodeConfig(insecure=True), Token((HERE,), (), b"r" * 32)),
        (NodeConfig(), Token((HERE,))),
        (NodeConfig(listen="0.0.0.0:1"), None),
        (NodeConfig(listen="here"), None),
        (NodeConfig(advertise="::1"), None),
        (NodeConfig(metrics="9090"), None),
        (NodeConfig(listen="none", advertise="gpu1:1"), SEALED),
    ],
)
def test_what_cannot_be_is_one_line(node: NodeConfig, token: Token | None) -> None:
    with pytest.raises(ConfigError) as error:
        check_way(node, token)
    assert "\n" not in str(error.value)


def test_in_the_clear_both_must_be_here_and_both_must_say_so() -> None:
    check_way(NodeConfig(insecure=True), Token((HERE, "localhost:1", "[::1]:1")))


@pytest.mark.parametrize(
    ("node", "contact", "listen"),
    [
        (NodeConfig(), "", "127.0.0.1:0"),
        (NodeConfig(), HERE, "127.0.0.1:0"),
        (NodeConfig(listen="[::1]:5"), HERE, "[::1]:5"),
        (NodeConfig(listen="none"), HERE, ""),
    ],
)
def test_where_a_node_listens(node: NodeConfig, contact: str, listen: str) -> None:
    assert listen_at(node, contact) == listen


@pytest.mark.parametrize(
    ("node", "listening", "contact", "address"),
    [
        (NodeConfig(), "127.0.0.1:5", "", "127.0.0.1:5"),
        (NodeConfig(advertise="gpu1:7"), "127.0.0.1:5", "", "gpu1:7"),
        (NodeConfig(advertise="gpu1:0"), "0.0.0.0:5", "", "gpu1:5"),
        (NodeConfig(), "0.0.0.0:5", HERE, "127.0.0.1:5"),
        (NodeConfig(), "[::]:5", "[::1]:4711", "[::1]:5"),
        (NodeConfig(listen="none"), "", HERE, ""),
    ],
)
def test_what_others_dial(node: NodeConfig, listening: str, contact: str, address: str) -> None:
    assert advertised(node, listening, contact) == address


def test_a_token_is_of_one_role() -> None:
    for token, witness in ((SEALED, False), (WITNESS, True), (SEALED, None), (WITNESS, None)):
        check_way(NodeConfig(), token, witness=witness)
    check_way(NodeConfig(insecure=True), Token((HERE,)), witness=True)
    with pytest.raises(ConfigError, match=r"admits nodes that train only.*--witness"):
        check_way(NodeConfig(), SEALED, witness=True)
    with pytest.raises(ConfigError, match="admits witnesses only"):
        check_way(NodeConfig(), WITNESS, witness=False)
