"""`dpserve`, and `python -m dpserve`: heeds Ctrl-C, and only then imports the command line."""

from dpserve.interrupts import heed_interrupts


def main() -> None:
    """Run the command line."""
    heed_interrupts()
    from dpserve.cli import main as run

    run()


if __name__ == "__main__":
    main()
