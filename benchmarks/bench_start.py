"""What a user waits for before anything happens: the import, and the stand-alone program.

python benchmarks/bench_start.py [--artifact FOLDER]    FOLDER holds run.py and its .tflite
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from record import write_bench

TIME_IMPORT = """
import time
import keras
start = time.perf_counter()
import keras_attention
print(time.perf_counter() - start)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--artifact", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    imports = [
        float(subprocess.check_output([sys.executable, "-c", TIME_IMPORT], text=True).split()[-1])
        for _ in range(options.turns)
    ]
    milliseconds = 1000 * statistics.median(imports)
    print(f"import keras_attention after import keras: {milliseconds:.0f} ms")
    write_bench("import", {"milliseconds_after_keras": milliseconds})
    if options.artifact:
        command = [sys.executable, str(options.artifact / "run.py"), "早上 好"]
        seconds = []
        for _ in range(options.turns):
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            seconds.append(time.perf_counter() - started)
        print(f"run.py, one sentence, start to end: {statistics.median(seconds):.2f} s")
        write_bench("run_py", {"seconds": statistics.median(seconds)})


if __name__ == "__main__":
    main()
