"""`python -m neuralmark` is `neuralmark`."""

from neuralmark.cli import main

if __name__ == "__main__":
    main()
