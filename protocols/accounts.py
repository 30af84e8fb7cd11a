"""What the leader knows of each peer beyond the log: one record per life, dropped as a whole.

Must NOT decide anything (leader.py, admission.py), nor hold what belongs to a round (reports.py).
"""
