"""The state of a rank's loop that survives restarts.

In: an optimizer, and objects with a `state_dict` (schedulers, averaged models, generators). Out: a
file of each rank beside the checkpoint of the same step, read back as a whole or not at all. Must
NOT contain parameters (the daemon has them), nor unpickle anything.

Start reading: rank_checkpoint.py, then kept_objects.py.
"""

__all__: list[str] = []
