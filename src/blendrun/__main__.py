"""`python -m blendrun` is `blendrun`."""

from blendrun.cli.main import main

if __name__ == "__main__":
    main()
