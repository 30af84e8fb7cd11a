"""Checkpoint files: one cut of the run on disk.

In: arrays, the cut and the snapshot of the log. Out: directories of safetensors files with the
names and shapes of the model's parameters, and residues of error feedback beside them. Must NOT
decide when a checkpoint is written (lowcomm/rank_control/checkpoint_schedule.py).

Start reading: checkpoint.py.
"""
