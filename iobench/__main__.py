"""`python -m iobench` is `iobench`."""

from iobench.terminal.cli import main

if __name__ == "__main__":
    main()
