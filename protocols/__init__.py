"""What peers agree on: pure and synchronous. Events and the time go in, commands come out."""
