"""The contract between the core and its shell: events go in, commands come out.

In: events.py, one record for each thing that happened (a message, a lost connection, a finished
sum, a deadline). Out: commands.py and transfer_commands.py, one record for each thing that the
shell has to do. The real shell is peers/driver.py; the simulated one is sims/node. Must NOT contain
decisions: the records are plain data.

Start reading: events.py and commands.py side by side.
"""
