"""How values travel. A new codec is one file and one line here; they never import each other.

Must NOT import torch: the daemon encodes and decodes.
"""

from collections.abc import Callable, Mapping

from lowcomm.codecs.base import Codec
from lowcomm.codecs.fp32 import Fp32
from protocols.errors import ConfigError

_CODECS: Mapping[str, Callable[[], Codec]] = {"fp32": Fp32}


def codec(name: str) -> Codec:
    """The codec of that name; raises ConfigError naming those that exist."""
    if name not in _CODECS:
        raise ConfigError(f"unknown codec {name!r}; known: {', '.join(sorted(_CODECS))}")
    return _CODECS[name]()
