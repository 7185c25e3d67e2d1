"""Writes the tables and charts of the pages from benches/record.

    python3 benches/report           # writes them
    python3 benches/report --check   # says which are not current, and exits with 1 if any is not

A page has its tables between `<!-- generated: NAME ARGUMENTS -->` and `<!-- end of generated -->`; NAME is a
function of libraries.py, tuning.py, applications.py, ebatch.py, server.py or serving.py. Charts are files in
benches/record/charts.
"""

from __future__ import annotations

import re
import sys

import applications
import ebatch
import libraries
import server
import serving
import tuning
from records import RECORD, ROOT

PAGES = ("README.md", "benches/record/README.md", "benches/references/README.md", "benches/server/README.md",
         "docs/deploy.md", "tuning/README.md",
         "tuning/accuracy/README.md", "tuning/applications/README.md", "tuning/ebatch/README.md",
         "tuning/serving/README.md")  # fmt: skip
TABLES = libraries.TABLES | tuning.TABLES | applications.TABLES | ebatch.TABLES | server.TABLES | serving.TABLES
CHARTS = libraries.CHARTS | tuning.CHARTS | ebatch.CHARTS | serving.CHARTS
BLOCK = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end of generated -->)", re.DOTALL)


def page(text: str) -> str:
    """A page with its tables as the records have them."""

    def replaced(block: re.Match[str]) -> str:
        name, *arguments = block[2].split()
        if name not in TABLES:
            raise SystemExit(f"no table {name}; there are {', '.join(sorted(TABLES))}")
        return f"{block[1]}\n{TABLES[name](*arguments)}\n\n{block[3]}"

    return BLOCK.sub(replaced, text)


def main() -> int:
    """Writes or checks all pages and charts."""
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__)
        return 2
    files = {ROOT / name: page((ROOT / name).read_text(encoding="utf-8")) for name in PAGES}
    files |= {RECORD / "charts" / f"{name}.svg": draw() for name, draw in CHARTS.items()}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    stale += sorted(set((RECORD / "charts").glob("*")) - set(files))
    if len(sys.argv) > 1:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what `python3 benches/report` writes", file=sys.stderr)
        return 1 if stale else 0
    (RECORD / "charts").mkdir(exist_ok=True)
    for path in stale:
        if path in files:
            path.write_text(files[path], encoding="utf-8")
        else:
            path.unlink()
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
