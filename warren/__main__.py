"""`python -m warren` is the `warren` command."""

from warren.server.cli import main

main()
