"""What things cost, measured beside what they compete with. Each prints what it ran on.

Must NOT be imported by anything.
"""
