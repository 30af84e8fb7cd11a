"""`python -m sims.wan --peers 3 --rate 100mbit --delay 50ms -- COMMAND`: see commands.py."""

import sys

import typer

from protocols.types import ConfigError, LowcommError
from sims.wan.commands import wan

if __name__ == "__main__":
    try:
        typer.run(wan)
    except ConfigError as error:
        sys.stderr.write(f"wan: {error}\n")
        sys.exit(2)
    except LowcommError as error:
        sys.stderr.write(f"wan: {error}\n")
        sys.exit(1)
