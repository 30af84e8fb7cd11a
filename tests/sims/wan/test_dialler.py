"""Who holds a socket, by the kernel's tables."""

from sims.wan.dialler import peer_of, socket_inode

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0
   1: 0100007F:D431 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4711 1 0
   2: 0100007F:0035 0100007F:1F90 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0
"""


def test_the_inode_of_a_local_port() -> None:
    assert socket_inode(TABLE, 0xD431) == "4711"
    assert socket_inode(TABLE, 0x1F91) is None
    assert socket_inode(TABLE, 0x35) is None  # Nobody holds it any more.


def test_only_a_process_with_the_token_is_a_peer() -> None:
    ours = b"A=b\0LOWCOMM_PEER=12\0LOWCOMM_WAN=abc\0"
    assert peer_of(ours, "abc") == 12
    assert peer_of(ours, "abcd") is None
    assert peer_of(b"LOWCOMM_PEER=12\0", "abc") is None
    assert peer_of(b"LOWCOMM_WAN=abc\0", "abc") is None
    assert peer_of(b"LOWCOMM_WAN=abc\0LOWCOMM_PEER=\xff\0", "abc") is None
