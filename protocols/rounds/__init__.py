"""One peer's part in the outer rounds of one fragment.

In: the plan of the open round (protocols/state), names of payloads that arrived, finished sums.
Out: commands to encode a contribution, send a slice, reduce a part, send a result, apply the outer
step. Payloads of another lineage, view or attempt are dropped (fencing.py). Must NOT touch bytes,
and must not decide which contributions count: the log does.

Start reading: fragment_rounds.py.
"""
