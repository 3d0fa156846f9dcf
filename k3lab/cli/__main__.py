"""`python -m k3lab.cli`: the command line without the console script."""

from k3lab.cli import main

main()
