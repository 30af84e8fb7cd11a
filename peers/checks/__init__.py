"""The bytes of owner checks.

In: commands of the core, and blocks that other peers send: secret samples of a result are computed
again from the contributors' blocks. Out: requests and answers to other peers, and events with the
differences. Must NOT decide whether a result counts, or which peer is at
fault (protocols/rounds), nor know arrays: the arithmetic is behind RoundWork (peers/exchange).

Start reading: block_checks.py, then samples.py.
"""

__all__: list[str] = []
