"""Train in this process, or as one worker of several, and write what came out."""

import argparse
import faulthandler
import json
import time
from pathlib import Path

# A worker whose peer has failed would wait for it: rather say where, and end.
faulthandler.dump_traceback_later(1800, exit=True)

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", type=Path)
parser.add_argument("names", nargs="+", help="model/case, plain/model/case, or a property")
parser.add_argument("--strategy", default="one")
parser.add_argument("--replicas", type=int)
options = parser.parse_args()

import keras  # noqa: E402 - the time limit and wrong arguments come before what takes seconds
import numpy as np  # noqa: E402

from keras_attention.recipes import strategies  # noqa: E402

strategy = strategies.choose(options.strategy, replicas=options.replicas)  # before any operation

from . import plain, properties, training  # noqa: E402

folder = options.folder / f"worker-{strategy.worker}"
folder.mkdir(parents=True)
results = {}
for name in options.names:
    started = time.perf_counter()
    if name in properties.PROPERTIES:
        arrays, figures = properties.PROPERTIES[name](strategy)
    elif name.startswith("plain/"):
        arrays, figures = plain.trained(name.removeprefix("plain/"), strategy)
    else:
        arrays, figures = training.trained(name, strategy)
    results[name] = {**figures, "seconds": time.perf_counter() - started}
    np.savez(folder / f"{name.replace('/', '-')}.npz", **arrays)
    keras.backend.clear_session(free_memory=False)
(folder / "figures.json").write_text(json.dumps(results), "utf-8")
if strategy.workers > 1:
    strategy.leave(0)
