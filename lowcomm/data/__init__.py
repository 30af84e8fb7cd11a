"""The text a run trains on, and how its samples are shared out. Must NOT import torch."""
