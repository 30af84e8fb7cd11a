"""What the root key signs is what the person typed."""

import pytest

from lowcomm.cli.revoke import means
from protocols.state.tokens import PRINT_BYTES, Token, encode_token

TOKEN = Token(
    ("10.1.2.3:4711",),
    (b"p" * PRINT_BYTES,),
    root=b"r" * 32,
    key=b"n" * 32,
    secret=b"s" * 32,
    signature=b"g" * 64,
)
GAMMA, NUMBER = "gamma.1.1f0c22aa", TOKEN.number


@pytest.mark.parametrize(
    ("what", "subject", "token"),
    [
        (GAMMA, GAMMA, False),
        ("gamma.1", GAMMA, False),
        (NUMBER, NUMBER, True),
        (NUMBER[:8], NUMBER, True),
        (encode_token(TOKEN), NUMBER, True),
    ],
)
def test_a_name_an_id_or_a_token_means_its_subject(what: str, subject: str, token: bool) -> None:
    assert means(what, subject, token=token)


@pytest.mark.parametrize(
    ("what", "subject", "token"),
    [
        ("gamma.1", "delta.1f0c22aa", False),
        ("gamma", GAMMA, False),
        ("gamma.1.00000000", GAMMA, False),
        ("", GAMMA, False),
        (NUMBER[:8], "0f" * 16, True),
        (encode_token(TOKEN), "0f" * 16, True),
    ],
)
def test_a_node_cannot_have_another_one_signed(what: str, subject: str, token: bool) -> None:
    assert not means(what, subject, token=token)
