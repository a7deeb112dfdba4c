# ruff: noqa: E402
# The source of translation.ipynb, which build.py makes of the cells below: imports stand in the
# cell that needs them, and none of Keras before its backend is chosen.

# %% [markdown]
# # Translation with attention
#
# This notebook trains the `translation` recipe of `keras_attention` on what the machine has: on a
# TPU by Keras on JAX, on GPUs or a CPU by Keras on TensorFlow. Then it measures the model, draws
# what it attends to, and exports it to a file that translates without TensorFlow.
#
# What was tried: the tests of the repository run all cells but the installation, on CPUs. No GPU
# and no TPU has run them, and no speed was measured.

# %% [markdown]
# ## Install
#
# The TensorFlow of a hosted notebook is made for its GPU, so this cell keeps it. The tokenizers
# need `tensorflow-text`, and each version of that works with one minor version of TensorFlow
# (2.21 with 2.21). So pip looks for the version that fits, and where this library supports none
# that does, it reports a conflict and installs nothing. Then either take another runtime, or leave
# out the line that adds `held` and let pip replace TensorFlow, and see below whether the GPU is
# still found. Keras and others may come in newer versions: restart the kernel if pip says so.
#
# TPU runtimes of Colab come with JAX and, since 2025, without TensorFlow. pip then brings
# TensorFlow from the package index: it has no TPU support and needs none, as tokenizers and input
# pipeline run on the CPU while the model runs on JAX.
#
# If the package index does not have `keras-attention-layers`, make a wheel of the repository
# (`pip wheel --no-deps .`), upload it, and put its path into `PACKAGE`. On Kaggle, internet access
# has to be switched on in the settings of the notebook.

# %% tags=["skip-execution"]
import importlib.metadata
import shlex

PACKAGE = "keras-attention-layers"

requirements = [f"{PACKAGE}[text,litert,plot,cli]"]
held = set(importlib.metadata.packages_distributions().get("tensorflow", []))
if held and "tensorflow" not in held:
    raise SystemExit(f"tensorflow-text would bring tensorflow over the files of {held}")
requirements += [f"{name}=={importlib.metadata.version(name)}" for name in held]
arguments = shlex.join(requirements)
# %pip install -q {arguments}

# %% [markdown]
# ## Choose
#
# `OUT` is the folder of the run, where checkpoints are kept. Training goes on from there when its
# cell is run again, also on another machine that has the folder.
#
# - **Colab** deletes its disk with the machine. Google Drive outlives it: mount it with
#   `from google.colab import drive; drive.mount("/content/drive")` and set
#   `OUT = Path("/content/drive/MyDrive/translation")`. Whether Drive is quick and reliable enough
#   to train into was not tried; the folder can also be copied there now and then.
# - **Kaggle** keeps what is below `/kaggle/working` as the output of a saved version. Data sets
#   that were added to the notebook lie below `/kaggle/input`.
#
# `PAIRS = "my.tsv"` trains on your own sentences: a UTF-8 file with source, TAB, target on each
# line. Without it the model learns a small generated Chinese-English language.
#
# Each of the five can also be given as an environment variable of the same name.

# %%
import os
from pathlib import Path

OUT = Path(os.environ.get("OUT", "runs/notebook"))
EPOCHS = int(os.environ.get("EPOCHS", 10))
PAIRS = os.environ.get("PAIRS")
BACKEND = os.environ.get("BACKEND", "auto")  # or: tensorflow, jax
MEASURED = int(os.environ.get("MEASURED", 1000))  # sentences of the test part, at most

# %% [markdown]
# ## Find the accelerator
#
# Keras reads its backend when it is imported, so this comes before. JAX is asked for a TPU in a
# process of its own, because the process that finds a TPU also occupies it. To choose again,
# restart the kernel.

# %%
import importlib.util
import subprocess
import sys


def tpu_devices() -> int:
    if not importlib.util.find_spec("jax"):
        return 0
    try:
        asked = subprocess.run(
            [sys.executable, "-c", "import jax; print(jax.device_count())"],
            env={**os.environ, "JAX_PLATFORMS": "tpu"},
            capture_output=True,
            text=True,
            timeout=180,
        )
    except subprocess.TimeoutExpired:
        print("No TPU: JAX did not answer")
        return 0
    if asked.returncode:
        print("No TPU:", asked.stderr.strip().split("\n")[-1])
        return 0
    return int(asked.stdout)


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "keras" in sys.modules:
    print("Keras has its backend already: restart the kernel to choose again")
elif BACKEND == "auto":
    os.environ["KERAS_BACKEND"] = "jax" if tpu_devices() else "tensorflow"
else:
    os.environ["KERAS_BACKEND"] = BACKEND

# %% [markdown]
# `auto` takes a TPU, else all GPUs of the machine, else one device, and says which. Training is by
# the same equations on all of them: on several devices each takes its part of every batch.

# %%
from keras_attention.recipes import strategies

strategy = strategies.choose("auto")
print(strategy)

# %% [markdown]
# ## Train
#
# Run this cell again after a disconnect, or after it was interrupted: it goes on from the last
# checkpoint (of each epoch, and every 1000 steps). Interrupting it saves first. A run that is
# complete is not trained again; raise `EPOCHS` and it goes on. Other options need another `OUT`.
# A `*` marks the best epoch so far: its model is kept.
#
# `Config` holds all options, as `keras-attention train translation --help` does. Two that help on
# borrowed machines: `minutes=50` ends in time, with the learning rate at its end by then, and
# `accumulate=2` needs less memory. The batch (`batch_size=64`) is that of all devices together; a
# larger one may use an accelerator better.

# %%
from keras_attention.recipes import translation_training
from keras_attention.recipes.translation_options import Config

if PAIRS:
    config = Config(pairs=[PAIRS], epochs=EPOCHS)
else:
    config = Config(**{**Config.small, "epochs": EPOCHS})


class Progress(translation_training.Listener):
    """Writes where the training is over the line it wrote before."""

    def on_step(self, step, figures):
        if step % 25 == 0:
            speed = f"{figures['tokens_per_second']:,.0f} tokens/s"
            print(f"step {step}: loss {figures['loss']:.3f}, {speed}", end=" \r", flush=True)


figures = translation_training.train(
    config, OUT, resume="auto", strategy=strategy, listeners=[Progress()]
)

# %% [markdown]
# ## Measure
#
# On the test part of the data, which training has not seen: BLEU and chrF by greedy and by beam
# search, perplexity, and the share of sentences that are right to the letter.

# %%
from keras_attention.recipes import translator

run = translator.load_run(OUT)
for name, value in translator.evaluate(run, limit=MEASURED).items():
    print(f"{name:<20} {value:.4g}" if isinstance(value, float) else f"{name:<20} {value}")

# %% [markdown]
# ## Translate

# %%
corpus = translator.load_corpus(config)
texts = corpus.test.source[:5]
rows = translator.translate(run, texts, translator.search_function(run, "beam"))
for text, row, reference in zip(texts, rows, corpus.test.target, strict=False):
    print(f"{text}  ->  {row['translation']}")
    print(f"    reference: {reference}")

# %% [markdown]
# White is where a word of the translation (left) looked in the source (top). If no font of the
# machine has the characters, a warning names a package that does.

# %%
from IPython.display import Image, display

from keras_attention import plot_attention

picture = OUT / "alignment.png"
row = rows[0]
plot_attention(
    row["alignment"], row["source"], row["target"], path=picture, title=row["translation"]
)
display(Image(filename=str(picture)))

# %% [markdown]
# ## Export
#
# Exporting needs the TensorFlow backend, whichever trained the model, and no accelerator: hence a
# command in a process of its own. The file is compared with the model before it gets its name.

# %%
command = [sys.executable, "-m", "keras_attention.recipes.cli"]
exported = subprocess.run(
    [*command, "export", str(OUT), "--to", "tflite"],
    env={**os.environ, "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": "-1"},
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
)
print(exported.stdout)
exported.check_returncode()

# %% [markdown]
# The file holds the model and both vocabularies. `Translator` needs the LiteRT interpreter, NumPy
# and a tokenizer library, but not TensorFlow. It is part of the short program `run.py`, which lies
# beside the file and goes with it.

# %%
from keras_attention.export.run_template import Translator

translator = Translator(OUT / "export" / "tflite" / "translation.tflite")
for text in texts:
    tokens, alignment = translator.translate(translator.ids(text), beam=True)
    print(f"{text}  ->  {translator.target.decode(tokens)}")

# %% [markdown]
# ## Several machines
#
# A hosted notebook is one machine, and one process uses all its devices. On several machines the
# same training is a command that each of them runs, with the addresses of all in its environment.
# `keras-attention launch` does that on one machine, to see what will happen on several: it starts
# processes that train together, and starts all again when one is lost.
#
# ```bash
# keras-attention launch --workers 2 -- \
#     keras-attention train translation --out runs/my --resume auto
# ```
#
# With `--to slurm` and others it writes the job file of a cluster instead. `docs/distributed.md` in
# the repository tells more.
