"""Acts of people, which operators sign.

In: log entries about acts (revocations and `Steered`). Out: the bytes that an operator signs, the
reason why an act does not count, and what the acts of the log led to: a pause, values of settings,
operators. The same entries give the same answer on each peer. Must NOT make or check a signature
itself (peers/security does), nor read a clock.

Start reading: authority.py, then orders.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from protocols.acts.orders import CONTINUE, KICK, PAUSE, SET
    from protocols.acts.settings import parsed_setting
    from protocols.acts.statements import act_statement, described, signer, subject

__all__ = [
    "CONTINUE",
    "KICK",
    "PAUSE",
    "SET",
    "act_statement",
    "described",
    "parsed_setting",
    "signer",
    "subject",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "orders": "CONTINUE KICK PAUSE SET",
        "settings": "parsed_setting",
        "statements": "act_statement described signer subject",
    },
)
