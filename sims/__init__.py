"""Test environments: local clusters of real processes, and a simulator in virtual time."""
