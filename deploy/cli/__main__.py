"""`python -m deploy.cli` is the `orchid` command."""

from deploy.cli import main

main()
