"""`python -m sims.wan --peers 3 --rate 100mbit --delay 50ms -- COMMAND`: see command_line.py."""

from sims.terminal import run
from sims.wan.command_line import wan

if __name__ == "__main__":
    run(wan)
