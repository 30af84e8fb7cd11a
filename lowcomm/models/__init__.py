"""The built-in models.

In: a model's configuration and a seed. Out: a torch module with the same initial parameters on
every node. Must NOT know nodes, methods or fragments.

Start reading: llama.py.
"""

from typing import TYPE_CHECKING

from protocols.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from lowcomm.models.llama import Llama, build_model, next_token_loss

__all__ = ["Llama", "build_model", "next_token_loss"]

__getattr__ = lazy_exports(
    __name__,
    {
        "llama": "Llama build_model next_token_loss",
    },
)
