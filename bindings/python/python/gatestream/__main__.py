"""The program ``gatestream``."""

import sys

from ._native import main as _main


def main() -> None:
    """Runs the program with the arguments of the process."""
    # The default action of Ctrl-C: the program handles it itself.
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_main(["gatestream", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
