"""Entry of the program, also as `python -m blendrun`; ends well while it is still loading, too."""

import signal
import sys

INTERRUPTED = 130


def main() -> None:
    # a batch system's SIGTERM ends a command as Ctrl-C does, from the first moment on
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from blendrun.cli.main import main as run  # takes a second

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
