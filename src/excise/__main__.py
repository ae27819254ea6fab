"""Runs the command line: ``python -m excise``."""

from excise.cli import main

main()
