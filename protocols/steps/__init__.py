"""One peer's part in a stepwise run.

Per-step methods are all-reduce and FlexDeMo. In: orders that the ranks have obeyed, payloads that
arrived, and what the log says about views and commits. Out: commands to send a payload, make a
step, apply a step, or go back to the last base. Steps are tentative until a commit in the log
covers them. Must NOT touch bytes, and must not decide when a view ends: the leader does
(protocols/leader/step_views.py).

Start reading: step_machine.py; go_on in it is the short way of a step without any change.
"""
