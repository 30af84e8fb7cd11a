"""Parts of the built-in training program: Muon, evaluation, progress meter.

In: the model and batches of lowcomm/worker.py. Out: optimizer steps, held-out loss, samples of
text, and tokens per second. A user's own program needs none of it. Must NOT be needed by
lowcomm/training.

Start reading: lowcomm/worker.py, which puts them together.
"""
