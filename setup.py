"""Packaging of keras_attention.

Three folders at the top of the repository are installed as one package, so that site-packages
gains a single name: `keras_attention`, with `recipes/` and `export/` mapped beneath it.
"""

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent


def version() -> str:
    """Read `__version__` from the source: importing it would need Keras at build time."""
    source = (ROOT / "keras_attention" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "([^"]+)"', source, re.MULTILINE).group(1)


# TensorFlow is an extra, never a core requirement: a plain install leaves alone the TensorFlow
# that a hosted notebook ships. tensorflow-text pins TensorFlow to its own minor version and has
# no Windows wheels.
EXTRAS = {
    "tensorflow": ["tensorflow>=2.20,<2.22"],
    "text": [
        "tensorflow-text>=2.20,<2.22; sys_platform != 'win32'",
        "sacrebleu>=2.4,<3",
        "tokenizers>=0.21,<0.24",
    ],
    "litert": ["ai-edge-litert>=2.0,<3", "tokenizers>=0.21,<0.24"],
    "quantization": ["ai-edge-quantizer>=0.5,<1"],
    "serving": ["tensorflow-serving-api>=2.20,<2.22"],
    "onnx": ["tf2onnx>=1.17,<2", "onnx>=1.17,<2", "onnxruntime>=1.20,<2"],
    "vectors": ["gensim>=4.3,<5"],
    "plot": ["matplotlib>=3.8,<4"],
    "cli": ["rich>=13.8,<16"],
    "jax": ["jax>=0.6,<0.11"],
    "tensorboard": ["tensorboard>=2.20,<2.22"],
}
EXTRAS["all"] = sorted({requirement for extra in EXTRAS.values() for requirement in extra})
EXTRAS["baselines"] = ["scikit-learn>=1.5,<2"]  # what benchmarks compare with
EXTRAS["dev"] = [
    "pytest>=8,<9.2",  # with 9.2 pytest-xdist 3.8 forgets its groups
    "pytest-xdist>=3.6,<4",
    "hypothesis>=6.100,<7",
    "ipykernel>=6.29,<8",
    "jupytext>=1.16,<2",
    "nbclient>=0.10,<0.12",
    "nbformat>=5.10,<6",
    "playwright>=1.50,<2",
    "ruff>=0.9,<0.18",
    "setuptools>=77",
    "wheel>=0.43",
]

setup(
    name="keras-attention-layers",
    version=version(),
    description="Attention layers for Keras 3, with export to SavedModel, TFLite and ONNX",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The keras_attention authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=["keras_attention", "keras_attention.recipes", "keras_attention.export"],
    package_dir={
        "keras_attention": "keras_attention",
        "keras_attention.recipes": "recipes",
        "keras_attention.export": "export",
    },
    package_data={
        "keras_attention": ["py.typed"],
        "keras_attention.export": ["run_template.py"],
    },
    install_requires=["keras>=3.15,<3.17", "numpy>=1.26,<3"],
    extras_require=EXTRAS,
    # A script of its own and no entry point: see there.
    scripts=["bin/keras-attention"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
