"""Encodings of values for the wire, one in each file.

In: fp32 values. Out: bytes of a size that follows from the number of values alone, and values
again. A codec keeps no state: the same values give the same bytes on every machine. int8, int4 and
fp4 have compiled loops (_kernels.c); error feedback belongs to the method. Must NOT import torch:
the daemon encodes and decodes. No codec imports another one.

Start reading: codec.py, then fp32.py and int8.py. A new codec is one file and one line here.
"""

from collections.abc import Callable, Mapping

from lowcomm.codecs.bf16 import Bf16
from lowcomm.codecs.blocks import BlockCodec, Kernels, compiled
from lowcomm.codecs.codec import Codec
from lowcomm.codecs.fp4 import Fp4
from lowcomm.codecs.fp16 import Fp16
from lowcomm.codecs.fp32 import Fp32
from lowcomm.codecs.int4 import Int4
from lowcomm.codecs.int8 import Int8
from lowcomm.codecs.powersgd import PowerSGD
from lowcomm.codecs.sign import Sign
from lowcomm.codecs.ternary import Ternary
from lowcomm.codecs.topk import TopK
from lowcomm.codecs.topk2bit import TopK2Bit
from lowcomm.codecs.twobit import TwoBit
from protocols.types import ConfigError

__all__ = [
    "BlockCodec",
    "Codec",
    "Fp4",
    "Int4",
    "Int8",
    "Kernels",
    "codec",
    "compiled",
    "known_codecs",
]

_CODECS: Mapping[str, Callable[[], Codec]] = {
    "fp32": Fp32,
    "bf16": Bf16,
    "fp16": Fp16,
    "int8": Int8,
    "int4": Int4,
    "fp4": Fp4,
    "2bit": TwoBit,
    "ternary": Ternary,
    "sign": Sign,
    "topk": TopK,
    "topk2bit": TopK2Bit,
    "powersgd": PowerSGD,
}


def codec(name: str) -> Codec:
    """Create the codec with this name; raises ConfigError with the known names if there is none."""
    if name not in _CODECS:
        raise ConfigError(f"unknown codec {name!r}; known: {', '.join(known_codecs())}")
    return _CODECS[name]()


def known_codecs() -> tuple[str, ...]:
    """The names of all codecs, sorted."""
    return tuple(sorted(_CODECS))
