"""`python -m sims.wan --peers 3 --rate 100mbit --delay 50ms -- COMMAND`: see commands.py."""

from sims.terminal import run
from sims.wan.commands import wan

if __name__ == "__main__":
    run(wan)
