"""fp32 arithmetic that every peer repeats with the same bits.

In: numpy arrays of one fragment. Out: pseudo-gradients, weighted and robust means, outer steps,
digests, discrete cosine transforms. Each operation rounds once; compiled loops (_arithmetic.c,
_cosines.c) and numpy give the same bits on every instruction set. Must NOT import torch, nor use an
operation with a result that depends on the CPU or on how work is cut.

Start reading: operations.py, then kernels.py.
"""
