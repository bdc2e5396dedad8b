"""`dpserve`, sampling itself: what `benchmarks.serving.stages` starts.

Run: python -m benchmarks.serving.profiled SAMPLES.json serve BUNDLE ...
"""

import json
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

from benchmarks.serving.stages import OTHER, stage_of
from dpserve.cli import main

_SECONDS_BETWEEN = 0.004


def _belongs_to_pool(frame: FrameType | None) -> bool:
    """Return whether a thread works for the event loop, and not for itself, as the journal's does."""
    while frame is not None:
        if "/concurrent/futures/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def run_sampled(written: Path) -> None:
    """Run the command line, counting stages every 4 ms of CPU time from SIGUSR1 on; write the counts at the end."""
    stage_of_file: dict[str, str | None] = {}
    counts: Counter[str] = Counter()

    def stage_at(frame: FrameType | None) -> str | None:
        while frame is not None:
            path = frame.f_code.co_filename
            if path not in stage_of_file:
                stage_of_file[path] = stage_of(path)
            stage = stage_of_file[path]
            if stage is not None:
                return stage
            frame = frame.f_back
        return None

    def sample(number: int, frame: FrameType | None) -> None:
        del number
        own = threading.get_ident()
        # A pool's thread that waits for work is in no stage.
        others = (each for identity, each in sys._current_frames().items() if identity != own)
        computing = map(stage_at, filter(_belongs_to_pool, others))
        counts[next(filter(None, computing), None) or stage_at(frame) or OTHER] += 1

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
    run_sampled(samples)
