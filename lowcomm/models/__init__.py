"""The models a run can train. Must NOT know of nodes, methods or fragments."""
