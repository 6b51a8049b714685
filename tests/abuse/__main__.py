"""``python -m abuse [NAME …]``, in tests/: make the attacks one by one, print how long an innocent client waited."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from . import scene
from .attacks import ATTACKS


def main() -> None:
    names = sys.argv[1:] or list(ATTACKS)
    print(f"{'worst wait in ms':32} confirm   login  health    peak    rest  lasted")
    for name in names:
        with tempfile.TemporaryDirectory(prefix="warren-abuse-") as directory:
            process = scene.broker(Path(directory))
            process.start()
            try:
                scene.admit(process)
                outcome = scene.run(process, name)
            except Exception as error:
                print(f"{name:32} {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            finally:
                process.kill()
        waits = "  ".join(f"{outcome.worst_s.get(what, 0) * 1000:6.0f}" for what in ("confirm", "login", "health"))
        memory = f"{outcome.peak_bytes >> 20:5} M {outcome.rest_bytes >> 20:5} M"
        print(f"{name:32}  {waits} {memory} {outcome.lasted_s:5.1f} s {' '.join(outcome.failures)[:200]}", flush=True)


if __name__ == "__main__":
    main()
