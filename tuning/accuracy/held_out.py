#!/usr/bin/env python3
"""Writes every held-out word of CMUdict and its pronunciations: tab-separated, one header line.

    python tuning/accuracy/held_out.py HELD_OUT.tsv

The split and the symbols are those of examples/models/train_g2p.py, which is imported for them.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "models"))
import train_g2p


def main():
    if len(sys.argv) != 2:
        raise SystemExit("usage: held_out.py HELD_OUT.tsv")
    words = train_g2p.split(train_g2p.load_dictionary())["held-out"]
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write("word\treferences\n")
        for word, references in words.items():
            file.write(f"{word}\t{'|'.join(map(train_g2p.spell, references))}\n")


if __name__ == "__main__":
    main()
