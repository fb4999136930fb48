"""`python -m harmofl`: the same as the command `harmofl`."""

from harmofl.cli import main

if __name__ == "__main__":
    main()
