"""Draws the JSON of `peers.py` as SVG: python benchmarks/chart.py results.json chart.svg"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.side_by_side.chart import svg
    from benchmarks.side_by_side.results import Results

    if len(sys.argv) != 3:
        sys.exit(__doc__)
    Path(sys.argv[2]).write_text(svg(Results.load(Path(sys.argv[1]))))
