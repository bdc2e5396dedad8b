"""`python -m dpserve`."""

from dpserve.cli import main

main()
