"""The replicated state machine: what the committed log says about the run.

In: log entries in order. Out: the members, joiners and voters, the open round and its plan (owners,
parts, attempt), committed versions, the ledger of samples, spent tokens and revocations. Every peer
that has applied the same entries has the same state. Must NOT use anything but the log: no clock,
no connection, no message. An entry that makes no sense where it stands is refused before it is
applied (entry_validation.py).

Start reading: run_state.py, then round_plan.py.
"""
