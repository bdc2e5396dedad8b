"""The pictures of README.md and docs/, each made again by `python -m research.pictures` from what it is made of."""
