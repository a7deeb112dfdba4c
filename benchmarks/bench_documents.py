"""A linear classifier of words and their neighbours, beside the documents recipe.

python benchmarks/bench_documents.py --data-dir DATA

It needs scikit-learn: pip install -e '.[baselines]'.

NB-SVM (Wang and Manning, "Baselines and Bigrams", ACL 2012): each word, pair and triple of words
that a text holds counts as the log ratio of its frequencies in the two classes, and a linear
support vector machine is trained on these.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from record import hardware, write

PENALTIES = (0.01, 0.1)
SMOOTHING = 1.0  # alpha, of a feature's frequency


def measure(data_dir: Path | None) -> dict:
    """Choose the penalty on the validation part, and test once."""
    import sklearn
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.svm import LinearSVC

    from keras_attention.recipes import classifier, labelled

    corpus = labelled.load("imdb", data_dir)
    started = time.process_time()
    cut = CountVectorizer(
        binary=True, ngram_range=(1, 3), min_df=2, token_pattern=r"\w+|[^\w\s]", dtype=np.float32
    )
    train = cut.fit_transform(corpus.train.texts)
    validation, test = (cut.transform(part.texts) for part in (corpus.validation, corpus.test))
    positive = np.array([label == corpus.labels[1] for label in corpus.train.labels])
    frequencies = [SMOOTHING + train[rows].sum(0) for rows in (positive, ~positive)]
    ratio = np.log(np.divide(*(p / p.sum() for p in frequencies)))
    ratio = np.asarray(ratio, np.float32)
    best = None
    for penalty in PENALTIES:
        model = LinearSVC(C=penalty, random_state=0).fit(train.multiply(ratio).tocsr(), positive)
        found = _accuracy(model, validation.multiply(ratio), corpus, corpus.validation)
        print(f"C {penalty}: validation accuracy {found:.2f} %", flush=True)
        if best is None or found > best[0]:
            best = found, model, penalty
    found, model, penalty = best
    answers = _answers(model, test.multiply(ratio), corpus)
    return {
        "title": "IMDB, a linear NB-SVM of word triples (no network)",
        "command": "python benchmarks/bench_documents.py",
        "figures": {
            "accuracy": _share(answers, corpus.test.labels),
            "macro_f1": classifier.macro_f1(answers, corpus.test.labels),
            "texts": len(answers),
            "validation_accuracy": found,
            "penalty": penalty,
        },
        "training": {
            "parameters": int(train.shape[1]),
            "minutes": (time.process_time() - started) / 60 / (os.cpu_count() or 1),
        },
        "seed": 0,
        "versions": {"scikit-learn": sklearn.__version__, "numpy": np.__version__},
        "date": time.strftime("%Y-%m-%d"),
        "hardware": hardware(),
    }


def _answers(model, rows, corpus):
    return [corpus.labels[int(x)] for x in model.predict(rows.tocsr())]


def _share(answers, labels):
    return 100 * float(np.mean([x == y for x, y in zip(answers, labels, strict=True)]))


def _accuracy(model, rows, corpus, part):
    return _share(_answers(model, rows, corpus), part.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("KERAS_ATTENTION_DATA"))
    options = parser.parse_args()
    try:
        import sklearn  # noqa: F401
    except ImportError:
        print("skipped: needs scikit-learn, pip install -e '.[baselines]'")
        return
    if options.data_dir is None:
        print("skipped: name the folder of the data sets by --data-dir")
        return
    found = measure(options.data_dir)
    print(f"test accuracy {found['figures']['accuracy']:.2f} %", flush=True)
    write("imdb-nbsvm", found)


if __name__ == "__main__":
    main()
