"""The model of a run for other programs.

In: the directory of a run, of a node, or of one checkpoint. Out: Hugging Face's files, a checkpoint
of torch.distributed, or text that the built-in model writes. Must NOT change a run's files, nor
import torch before a command needs it.

Start reading: model_source.py.
"""

__all__: list[str] = []
