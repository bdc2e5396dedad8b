"""`dpserve`, sampling itself: what `benchmarks.serving.stages` starts.

Run: python -m benchmarks.serving.profiled SAMPLES.json serve BUNDLE ...
"""

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

from benchmarks.serving.stages import OTHER, stage_of
from dpserve.cli import main

_SECONDS_BETWEEN = 0.004


def sampled(written: Path) -> None:
    """Run the command line, counting stages every 4 ms of CPU time from SIGUSR1 on; write the counts at the end."""
    stage_of_file: dict[str, str | None] = {}
    counts: Counter[str] = Counter()

    def sample(number: int, frame: FrameType | None) -> None:
        del number
        while frame is not None:
            path = frame.f_code.co_filename
            if path not in stage_of_file:
                stage_of_file[path] = stage_of(path)
            stage = stage_of_file[path]
            if stage is not None:
                counts[stage] += 1
                return
            frame = frame.f_back
        counts[OTHER] += 1

    def begin(*_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, _SECONDS_BETWEEN, _SECONDS_BETWEEN)

    signal.signal(signal.SIGPROF, sample)
    signal.signal(signal.SIGUSR1, begin)
    try:
        main()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        written.write_text(json.dumps(counts))


if __name__ == "__main__":
    samples = Path(sys.argv.pop(1))
    sampled(samples)
