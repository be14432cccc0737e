"""Octavo beside vLLM, llama.cpp and transformers: one process of measurement, one table.

python benchmarks/peers.py --help
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from benchmarks.side_by_side.cli import main

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # ends the engines
    sys.exit(main())
