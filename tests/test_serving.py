"""Serving the SavedModel: the loaders of a server, its warm-up, and our own server's answers."""

import contextlib
import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from conftest import randomize

from keras_attention.export.errors import ArtifactError
from keras_attention.export.saved_model import export_saved_model
from keras_attention.recipes import serve, translation, translation_export, translator
from keras_attention.recipes.errors import RunError
from keras_attention.recipes.runs import Run, write_config
from keras_attention.recipes.tokenizers import SPECIAL, Tokenizer
from keras_attention.recipes.translation_options import Config

pytestmark = pytest.mark.xdist_group("serving")  # one artifact, whatever the number of workers

ROOT = Path(__file__).parents[1]
NO_MESSAGES = "tensorflow-serving-api, which has the messages of TensorFlow Serving, is missing"
TEXTS = ["早上 好", "我 是 一名 演员", "好"]
IDS = np.array([[4, 5, 6, 2], [7, 2, 0, 0]], "int32")
WARMUP = Path("assets.extra", "tf_serving_warmup_requests")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the recipe as training leaves it, with random weights: what it says is no matter."""
    pytest.importorskip("tensorflow_text", reason="the text extra is not installed")
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    folder.mkdir()
    sizes = {"embedding": 6, "encoder_units": 5, "units": 7}
    config = Config(max_length=9, beam_width=2, **sizes)
    write_config(folder, config)
    words = {"source": "早上 好 我 是 一名 演员", "target": "good morning I am an actor"}
    sides = {}
    for side, known in words.items():
        sides[side] = Tokenizer((*SPECIAL, *known.split()), "spaces", "nfkc")
        sides[side].save(folder, side)
    model = translation.model_of(config, sides["source"].size, sides["target"].size)
    randomize(model, scale=1.5)
    return Run(config=config, model=model, folder=folder, **sides)


@pytest.fixture(scope="module")
def version(run):
    return translation_export.export(run, "saved_model", verify=False)  # as everything here does


@pytest.fixture(scope="module")
def said():
    """What the server has reported."""
    return []


@pytest.fixture(scope="module")
def served(run, version, said):
    with serve.serving(run.folder, port=0, grpc_port=0, report=said.append) as served:
        yield served


@pytest.fixture(scope="module")
def answers(run):
    """What the recipe itself makes of the texts."""
    rows = translator.translate(run, TEXTS, translator.search_function(run, "beam"))
    assert len({row["translation"] for row in rows}) > 1  # or nothing would be compared
    return rows


@pytest.fixture(scope="module")
def found(run):
    """What the recipe itself makes of the ids: a `SearchResult` of each search."""
    return {name: translator.search_function(run, name)(IDS) for name in ("greedy", "beam")}


def assert_translated(outputs, answers):
    """Outputs of the text signature, as arrays, are the recipe's own."""
    texts = [text.decode() for text in np.asarray(outputs["translation"]).tolist()]
    assert texts == [row["translation"] for row in answers]
    np.testing.assert_allclose(outputs["score"], [row["score"] for row in answers], rtol=1e-4)
    for given, row in zip(np.asarray(outputs["alignment"]), answers, strict=True):
        length, width = np.shape(row["alignment"])
        np.testing.assert_allclose(given[:length, :width], row["alignment"], atol=1e-5)


def assert_searched(outputs, wanted):
    np.testing.assert_array_equal(outputs["tokens"], wanted.tokens)
    np.testing.assert_array_equal(outputs["lengths"], wanted.lengths)
    np.testing.assert_allclose(outputs["scores"], wanted.scores, rtol=1e-4)
    np.testing.assert_allclose(outputs["alignment"], wanted.alignments, atol=1e-5)


# Loaders.


@pytest.mark.filterwarnings("ignore")
def test_the_loader_of_the_server_runs_text_and_ids(version, answers, found):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(version))
        start = graph.signature_def["__saved_model_init_op"].outputs["__saved_model_init_op"]
        # As the server does it: the paths of the assets are fed.
        assets = {
            a.tensor_info.name: f"{version}/assets/{a.filename}" for a in graph.asset_file_def
        }
        assert len(assets) == 2
        session.run(start.name, assets)

        def answer(signature, **inputs):
            known = graph.signature_def[signature]
            fed = {known.inputs[name].name: value for name, value in inputs.items()}
            return session.run({key: info.name for key, info in known.outputs.items()}, fed)

        assert_translated(answer("serving_default", text=TEXTS), answers)
        for name, wanted in found.items():
            assert_searched(answer(name, source=IDS), wanted)
        memory = answer("encode", source=IDS)
        step = answer("decode_step", token=np.array([1, 1], "int32"), **memory)
        np.testing.assert_array_equal(step["logits"].argmax(-1), found["greedy"].tokens[:, 0])


# The tool itself, for each list of arguments, with the operators of text made known to it.
TOOL = """
import contextlib, json, sys
import tensorflow_text
from importlib.metadata import entry_points

for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    with contextlib.suppress(SystemExit):
        entry_points(name="saved_model_cli")["saved_model_cli"].load()()
"""


def test_saved_model_cli_runs_text_and_ids(version, answers, found, tmp_path):
    np.save(tmp_path / "text.npy", np.array([text.encode() for text in TEXTS]))
    np.save(tmp_path / "source.npy", IDS)
    base = ["run", "--dir", str(version), "--tag_set", "serve", "--signature_def"]
    calls = [
        [*base, "serving_default", "--inputs", "text=text.npy", "--outdir", "text"],
        [*base, "greedy", "--inputs", "source=source.npy", "--outdir", "ids"],
    ]
    tool = [sys.executable, "-c", TOOL, json.dumps(calls)]
    done = subprocess.run(tool, cwd=tmp_path, capture_output=True, text=True)
    assert (tmp_path / "ids").is_dir(), done.stderr

    def results(folder):
        files = (tmp_path / folder).glob("*.npy")
        return {path.stem: np.load(path, allow_pickle=True) for path in files}

    assert_translated(results("text"), answers)
    assert_searched(results("ids"), found["greedy"])


# Warm-up.


def warmups(version):
    """The requests of a version, `(signature, inputs)`."""
    log = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2", reason=NO_MESSAGES)
    for record in tf.data.TFRecordDataset(str(version / WARMUP)):
        parsed = log.PredictionLog.FromString(record.numpy())
        assert parsed.WhichOneof("log_type") == "predict_log"
        request = parsed.predict_log.request
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        yield request.model_spec.signature_name, inputs


def test_every_request_of_the_warm_up_runs_on_its_signature(run, version):
    requests = list(warmups(version))
    assert {name for name, _ in requests} == {"serving_default", "encode", "greedy"}
    loaded = tf.saved_model.load(str(version))
    for name, inputs in requests:
        outputs = loaded.signatures[name](**{k: tf.constant(v) for k, v in inputs.items()})
        rows = len(next(iter(inputs.values())))
        assert rows and all(len(output) == rows for output in outputs.values())
    texts = [text for name, inputs in requests if name == "serving_default" for text in inputs]
    assert texts == ["text", "text"]
    search = translator.search_function(run, "greedy")
    for name, inputs in requests:
        if name == "greedy":  # ids that the model knows, and no others
            given = loaded.signatures[name](source=tf.constant(inputs["source"]))
            np.testing.assert_array_equal(given["tokens"], search(inputs["source"]).tokens)


def test_warm_up_is_written_as_it_is_given(tmp_path):
    functions = {
        "scale": (lambda x, by: {"y": x * by}, {
            "x": tf.TensorSpec([None, 2], tf.float32), "by": tf.TensorSpec([], tf.float32),
        }),
        "shout": (lambda text: {"text": tf.strings.upper(text)}, {
            "text": tf.TensorSpec([None], tf.string),
        }),
    }  # fmt: skip
    given = {
        "scale": [{"x": np.ones((3, 2), "float32"), "by": 2.0}, {"x": [[0, 1]], "by": 1}],
        "shout": [{"text": ["a", "é"]}],
    }
    pytest.importorskip("tensorflow_serving.apis", reason=NO_MESSAGES)
    version = export_saved_model(functions, tmp_path / "m", warmup=given)
    written = list(warmups(version))
    assert [name for name, _ in written] == ["scale", "scale", "shout"]
    np.testing.assert_array_equal(written[0][1]["x"], np.ones((3, 2), "float32"))
    assert written[1][1]["by"] == 1 and written[1][1]["x"].dtype == np.float32
    assert [text.decode() for text in written[2][1]["text"]] == ["a", "é"]
    assert [p.name for p in version.parent.iterdir()] == ["1"]
    plain = export_saved_model(functions, tmp_path / "m")
    assert not (plain / WARMUP).exists()


def refusing(text):
    check = tf.debugging.assert_less_equal(tf.strings.length(text), 3, "too long")
    with tf.control_dependencies([check]):
        return {"text": tf.identity(text)}


@pytest.mark.parametrize(
    ("warmup", "says"),
    [
        ({"shout": [{"text": ["a"]}]}, "no signature 'shout': there are say, serving_default"),
        (
            {"say": [{"text": ["a"]}, {"words": ["a"]}]},
            r"warmup\['say'\]\[1\] must give \['text'\]",
        ),
        ({"say": [{"text": ["much too long"]}]}, r"\['say'\]\[0\] does not run: .*too long"),
        ({"say": [{"text": [1]}]}, r"\['say'\]\[0\] does not run"),
        ({"say": [{"text": "a"}]}, r"\['say'\]\[0\] does not run"),
        ({"say": [{"text": ["a"]}] * 1001}, "1001 requests, TensorFlow Serving reads 1000 at most"),
    ],
)
def test_a_warm_up_that_would_fail_on_the_server_is_refused(tmp_path, warmup, says):
    pytest.importorskip("tensorflow_serving.apis", reason=NO_MESSAGES)
    functions = {"say": (refusing, {"text": tf.TensorSpec([None], tf.string)})}
    with pytest.raises(ValueError, match=says) as error:
        export_saved_model(functions, tmp_path / "m", warmup=warmup)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_without_the_messages_of_the_server(run, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("tensorflow_serving")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow_serving", None)
    functions = {"say": (refusing, {"text": tf.TensorSpec([None], tf.string)})}
    with pytest.raises(ImportError, match=r"pip install 'keras-attention-layers\[serving\]'$"):
        export_saved_model(functions, tmp_path / "m", warmup={"say": [{"text": ["a"]}]})
    assert list(tmp_path.iterdir()) == []

    exported = {}
    monkeypatch.setattr(
        translation_export, "export_saved_model", lambda *_, **given: exported.update(given)
    )
    translation_export.export(run, "saved_model", tmp_path / "m")
    assert exported["warmup"] is None

    path = export_saved_model(functions, tmp_path / "m")
    said = []
    with serve.serving(path, port=0, grpc_port=0, name="echo", report=said.append) as served:
        assert served.grpc is None and said[0].startswith("REST alone: gRPC needs")
        assert ask(served.rest, {"instances": ["a"]}) == (200, {"predictions": ["a"]})


# REST.

PREDICT = "/v1/models/translation:predict"


def ask(address, request=None):
    """The status and the JSON that an address answers; a request of bytes is sent as it is."""
    if not (request is None or isinstance(request, bytes)):
        request = json.dumps(request).encode()
    try:
        with urllib.request.urlopen(address, request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            assert error.headers["Content-Type"] == "application/json"
            return error.code, json.load(error)


def as_arrays(outputs):
    return {
        name: np.array([text.encode() for text in value]) if name == "translation" else value
        for name, value in outputs.items()
    }


@pytest.mark.parametrize("form", ["values", "objects"])
def test_rows_are_answered_by_rows(served, answers, form):
    rows = TEXTS if form == "values" else [{"text": text} for text in TEXTS]
    code, answer = ask(served.rest, {"instances": rows})
    assert code == 200
    rows = answer["predictions"]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert_translated(as_arrays(columns), answers)
    assert rows[0]["source_tokens"] == ["早上", "好", "[END]", "[PAD]", "[PAD]"]


@pytest.mark.parametrize("form", ["named", "alone"])
def test_columns_are_answered_by_columns(served, answers, form):
    code, answer = ask(served.rest, {"inputs": {"text": TEXTS} if form == "named" else TEXTS})
    assert code == 200
    assert_translated(as_arrays(answer["outputs"]), answers)


@pytest.mark.parametrize("signature", ["greedy", "beam"])
def test_ids_are_searched(served, found, signature):
    request = {"signature_name": signature, "instances": IDS.tolist()}
    for place in (served.rest, served.rest.replace(":predict", "/versions/1:predict")):
        code, answer = ask(place, request)
        assert code == 200
        rows = answer["predictions"]
        assert_searched({k: np.array([row[k] for row in rows]) for k in rows[0]}, found[signature])


def test_a_signature_of_several_inputs(served, found):
    code, answer = ask(served.rest, {"signature_name": "encode", "inputs": IDS.tolist()})
    memory = answer["outputs"]
    assert code == 200 and memory["mask"] == [[True] * 4, [True, True, False, False]]
    rows = [{"token": 1, **{k: v[i] for k, v in memory.items()}} for i in range(len(IDS))]
    code, answer = ask(served.rest, {"signature_name": "decode_step", "instances": rows})
    assert code == 200
    tokens = [int(np.argmax(row["logits"])) for row in answer["predictions"]]
    assert tokens == found["greedy"].tokens[:, 0].tolist()
    columns = {"signature_name": "decode_step", "inputs": {"token": [1, 1], **memory}}
    assert ask(served.rest, columns)[1]["outputs"]["logits"] == [
        row["logits"] for row in answer["predictions"]
    ]


def test_bytes_travel_as_base64(tmp_path):
    def reverse(text):
        return {"text": text, "text_bytes": text}

    functions = {
        "serving_default": (reverse, {"text": tf.TensorSpec([None], tf.string)}),
        "total": (lambda x: {"sum": tf.reduce_sum(x)}, {"x": tf.TensorSpec([None], tf.float32)}),
    }
    path = export_saved_model(functions, tmp_path / "m")
    with serve.serving(path.parent, port=0, grpc_port=0, name="m", report=len) as served:
        code, answer = ask(served.rest, {"instances": [{"b64": "w6k="}, "é"]})
        row = {"text": "é", "text_bytes": {"b64": "w6k="}}
        assert (code, answer) == (200, {"predictions": [row, row]})
        total = {"signature_name": "total", "inputs": [1, 2.5]}
        assert ask(served.rest, total) == (200, {"outputs": 3.5})
        code, answer = ask(served.rest, {"signature_name": "total", "instances": [1, 2.5]})
        assert code == 400 and "'sum' has no row for each instance" in answer["error"]


GREEDY = {"signature_name": "greedy"}


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (b"no json", "is not JSON"),
        (b"", "is not JSON"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        ([1], "a JSON object with either 'instances' or 'inputs'"),
        ({}, "either 'instances' or 'inputs'"),
        ({"instances": ["a"], "inputs": ["a"]}, "either 'instances' or 'inputs'"),
        ({"instances": ["a"], "signature_name": 3}, "signature_name must be a string"),
        ({"instances": ["a"], "signature_name": "sing"}, "'sing' not found: there are beam"),
        ({"instances": []}, "a list of at least one"),
        ({"instances": "a"}, "a list of at least one"),
        ({"instances": [{"words": "a"}]}, "instance 1 must give ['text']. Received: ['words']"),
        ({"instances": [{"text": "a"}, "a"]}, "instance 2 must give ['text']. Received: str"),
        ({"inputs": {"words": ["a"]}}, "takes ['text']. Received: ['words']"),
        ({"inputs": {}}, "takes ['text']. Received: []"),
        ({"inputs": [1]}, "'text' must be string. Received: 1"),
        ({"inputs": [None]}, "'text' must be string. Received: null"),
        ({"inputs": [["a"]]}, "'text' must be of shape (None,). Received: (1, 1)"),
        ({"inputs": ["\ud800"]}, "'text' is no text"),
        ({"inputs": [{"b64": "?"}]}, "'text' is no text"),
        ({"inputs": ["好 " * 9]}, "a text has more than 9 pieces"),
        ({**GREEDY, "inputs": [[4, 2], [2]]}, "'source' is ragged"),
        ({**GREEDY, "inputs": [[4, [2]]]}, "'source' is ragged"),
        ({**GREEDY, "inputs": [4, 2]}, "'source' must be of shape (None, None). Received: (2,)"),
        ({**GREEDY, "inputs": [[4.5]]}, "'source' must be int32"),
        ({**GREEDY, "inputs": [["4"]]}, "'source' must be int32. Received: \"4\""),
        ({**GREEDY, "inputs": [[True]]}, "'source' must be int32. Received: true"),
        ({**GREEDY, "inputs": [[2**40]]}, "'source' must be int32"),
        ({**GREEDY, "inputs": [[2**99]]}, "'source' must be int32"),
        ({**GREEDY, "inputs": [[99]]}, "= 99 is not in [0, 10)"),
        ({"signature_name": "decode_step", "inputs": [1]}, "takes several inputs"),
        ({"signature_name": "__saved_model_init_op", "inputs": [1]}, "not found"),
        (b'{"inputs": "' + b"a" * serve.LARGEST_REQUEST + b'"}', "bytes, 16777216 are the most"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_one_line_and_the_server_lives_on(served, request_, says):
    code, answer = ask(served.rest, request_)
    assert code == 400 and set(answer) == {"error"}
    assert says in answer["error"] and "\n" not in answer["error"]
    assert ask(served.rest, {"instances": TEXTS[:1]})[0] == 200


@pytest.mark.parametrize(
    ("path", "request_", "says"),
    [
        ("/v1/models/other:predict", {"instances": ["a"]}, "Latest(other)"),
        ("/v1/models/translation/versions/7:predict", {"instances": ["a"]}, "(translation, 7)"),
        ("/v1/models/other", None, "Latest(other)"),
        ("/v1/models/translation/versions/7/metadata", None, "Specific(translation, 7)"),
        ("/v1/models/translation:classify", {"instances": ["a"]}, "Malformed request: POST"),
        ("/v1/models/translation:predict", None, "Malformed request: GET"),
        ("/", None, "Malformed request: GET /"),
    ],
)
def test_what_is_not_there_is_404(served, path, request_, says):
    code, answer = ask(served.rest.partition("/v1")[0] + path, request_)
    assert code == 404 and says in answer["error"]


def test_status_and_metadata(served):
    base = served.rest.removesuffix(":predict")
    status = {"error_code": "OK", "error_message": ""}
    one = {"version": "1", "state": "AVAILABLE", "status": status}
    for place in (base, f"{base}/versions/1"):
        assert ask(place) == (200, {"model_version_status": [one]})
    code, answer = ask(f"{base}/metadata")
    assert code == 200
    assert answer["model_spec"] == {"name": "translation", "signature_name": "", "version": "1"}
    known = answer["metadata"]["signature_def"]["signature_def"]
    assert {"serving_default", "encode", "decode_step", "greedy", "beam"} < set(known)
    tokens = known["greedy"]["outputs"]["tokens"]
    assert tokens["dtype"] == "DT_INT32"
    assert [dim["size"] for dim in tokens["tensor_shape"]["dim"]] == ["-1", "9"]


def test_one_connection_serves_after_mistakes(served):
    address = served.rest.split("/")[2]
    with contextlib.closing(http.client.HTTPConnection(address)) as connection:
        for body, code in [(b"x", 400), (b'{"instances": ["a"]}', 200)] * 2:
            connection.request("POST", PREDICT, body)
            answer = connection.getresponse()
            assert answer.status == code and json.loads(answer.read())
        connection.request("PUT", PREDICT, b"{}")
        answer = connection.getresponse()
        assert answer.status == 501 and "PUT" in json.loads(answer.read())["error"]


def test_a_request_may_come_in_chunks(served):
    with contextlib.closing(http.client.HTTPConnection(served.rest.split("/")[2])) as connection:
        for chunks, code in [
            ([b'{"insta', b'nces": ["a"]}'], 200),
            ([b"a" * 2**20] * 17, 400),
            ([b'{"inputs": ["a"]}'], 200),
        ]:
            connection.request("POST", PREDICT, iter(chunks), encode_chunked=True)
            answer = connection.getresponse()
            assert answer.status == code and json.loads(answer.read())


@pytest.mark.parametrize("header", ["Content-Length: many", "Transfer-Encoding: chunked"])
def test_a_request_of_unknown_length_is_refused(served, header):
    host, port = served.rest.split("/")[2].split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"POST {PREDICT} HTTP/1.1\r\n{header}\r\n\r\nmany\r\n".encode())
        answer = b"".join(iter(lambda: client.recv(2**16), b"")).decode()
    assert answer.startswith("HTTP/1.1 400") and "does not say how long it is" in answer


def test_a_client_that_hangs_up_is_told_of_in_one_line(served, said, capfd):
    host, port = served.rest.split("/")[2].split(":")
    before = len(said)
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.sendall(f"POST {PREDICT} HTTP/1.1\r\nContent-Length: 9\r\n\r\n{{".encode())
    assert ask(served.rest, {"instances": TEXTS[:1]})[0] == 200
    assert all("\n" not in line for line in said[before:])
    assert "Traceback" not in capfd.readouterr().err


# gRPC.


@pytest.fixture(scope="module")
def stub(served):
    grpc = pytest.importorskip("grpc", reason=NO_MESSAGES)
    apis = pytest.importorskip(
        "tensorflow_serving.apis.prediction_service_pb2_grpc", reason=NO_MESSAGES
    )
    with grpc.insecure_channel(served.grpc) as channel:
        yield apis.PredictionServiceStub(channel)


def predict_request(signature="", model="translation", **inputs):
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest(
        inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()}
    )
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    return request


def test_grpc_answers_text_and_ids(stub, answers, found):
    answer = stub.Predict(predict_request(text=TEXTS))
    outputs = {name: tf.make_ndarray(value) for name, value in answer.outputs.items()}
    assert_translated(outputs, answers)
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == (
        "translation", 1, "serving_default",
    )  # fmt: skip
    for name, wanted in found.items():
        answer = stub.Predict(predict_request(name, source=IDS))
        assert_searched({k: tf.make_ndarray(v) for k, v in answer.outputs.items()}, wanted)


def test_grpc_gives_the_outputs_that_are_asked_for(stub):
    request = predict_request(text=TEXTS)
    request.output_filter.append("translation")
    assert set(stub.Predict(request).outputs) == {"translation"}


def test_grpc_gives_metadata(stub):
    from tensorflow_serving.apis import get_model_metadata_pb2 as messages

    request = messages.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "translation"
    answer, known = stub.GetModelMetadata(request), messages.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(known)
    assert known.signature_def["serving_default"].inputs["text"].dtype == tf.string.as_datatype_enum


def of_version(number):
    request = predict_request(text=TEXTS)
    request.model_spec.version.value = number
    return request


def filtered():
    request = predict_request(text=TEXTS)
    request.output_filter.append("colour")
    return request


def vast():
    """A few bytes that stand for a tensor of four gigabytes."""
    request = predict_request("greedy", source=IDS)
    proto = request.inputs["source"]
    proto.tensor_content = b""
    proto.int_val.append(4)
    proto.tensor_shape.dim[0].size = 2**30
    return request


@pytest.mark.parametrize(
    ("made", "code", "says"),
    [
        (lambda: predict_request(model="other", text=TEXTS), "NOT_FOUND", "Latest(other)"),
        (lambda: of_version(7), "NOT_FOUND", "Specific(translation, 7)"),
        (lambda: predict_request("sing", text=TEXTS), "FAILED_PRECONDITION", "'sing' not found"),
        (lambda: predict_request(words=TEXTS), "INVALID_ARGUMENT", "takes ['text']"),
        (lambda: predict_request(text=[1]), "INVALID_ARGUMENT", "must be string. Received: int32"),
        (lambda: predict_request("greedy", source=IDS.astype("int64")), "INVALID_ARGUMENT",
         "must be int32. Received: int64"),
        (lambda: predict_request("greedy", source=IDS[0]), "INVALID_ARGUMENT", "of shape"),
        (lambda: predict_request(text=["好 " * 9]), "INVALID_ARGUMENT", "more than 9 pieces"),
        (filtered, "INVALID_ARGUMENT", "names no output: colour"),
        (vast, "INVALID_ARGUMENT", "16777216 are the most"),
        (lambda: predict_request(text=["a" * serve.LARGEST_REQUEST]), "RESOURCE_EXHAUSTED",
         "larger than max"),
    ],
)  # fmt: skip
def test_grpc_refuses_by_the_codes_of_the_server(stub, made, code, says):
    import grpc

    with pytest.raises(grpc.RpcError) as error:
        stub.Predict(made())
    assert error.value.code().name == code and says in error.value.details()
    assert "\n" not in error.value.details()
    assert stub.Predict(predict_request(text=TEXTS)).outputs


def test_the_requests_of_the_documentation_are_answered(served):
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    commands = re.findall(r"^curl .*$", page, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        _, *options, address = shlex.split(command)
        body = options[1].encode() if options else None
        here = address.replace("http://localhost:8501", served.rest.partition("/v1")[0])
        assert here != address and ask(here, body)[0] == 200, command


def test_the_signatures_of_the_documentation_are_the_model_s(served):
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))
    assert set(rows) == set(served.model.runners)
    for signature in ("serving_default", "greedy"):
        runner = served.model.runners[signature]
        names = set(re.findall(r"`(\w+)`", rows[signature]))
        assert names == {*runner.inputs, *runner.outputs}


# What is served, and where.


def test_a_run_a_folder_and_a_version_are_found(run, version, tmp_path):
    assert serve.version_of(run.folder) == version
    assert serve.version_of(version.parent) == version
    assert serve.version_of(version) == version
    for number in ("9", "10", "11"):  # of which the last is not written to its end
        (tmp_path / "m" / number).mkdir(parents=True)
        if number != "11":
            (tmp_path / "m" / number / "saved_model.pb").touch()
    assert serve.version_of(tmp_path / "m").name == "10"


def test_what_cannot_be_served_is_named(tmp_path):
    with pytest.raises(RunError, match=r"neither a run nor a SavedModel"):
        serve.version_of(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(RunError, match=rf": keras-attention export {tmp_path} --to saved_model$"):
        serve.version_of(tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"\x00garbage")
    with pytest.raises(RunError, match=r"saved_model.pb is damaged"):
        with serve.serving(tmp_path / "1", port=0, grpc_port=0, report=len):
            pass


def test_a_version_that_is_not_what_was_exported_is_named(version, tmp_path):
    damaged = tmp_path / "1"
    shutil.copytree(version, damaged)
    words = damaged / "assets" / "source.vocabulary.txt"
    words.write_bytes(words.read_bytes()[:-1])
    reason = r"is damaged \(assets/source.vocabulary.txt is not what was exported\)$"
    with pytest.raises(ArtifactError, match=reason):
        with serve.serving(damaged, port=0, grpc_port=0, report=len):
            pass


def test_the_signatures_share_one_loaded_model(served):
    assert len({id(runner.loaded) for runner in served.model.runners.values()}) == 1


@pytest.mark.parametrize("option", ["port", "grpc_port"])
def test_a_port_that_is_taken_is_named(version, option):
    if option == "grpc_port":
        pytest.importorskip("tensorflow_serving.apis", reason=NO_MESSAGES)
    ports = {"port": 0, "grpc_port": 0}
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports[option] = number = other.getsockname()[1]
        flag = option.replace("_", "-")
        with pytest.raises(
            RunError, match=rf"{number} of 127.0.0.1 is in use: .* by --{flag}, or 0"
        ):
            with serve.serving(version, report=len, **ports):
                pass


# The command.


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["{tmp}/nothing"], 1, "is neither a run nor a SavedModel"),
        (["{tmp}/run"], 1, "export {tmp}/run --to saved_model"),
        (["{version}", "--host", "256.1.1.1"], 1, "cannot listen on 256.1.1.1"),
        (["{version}", "--port", "65536"], 2, "must be 0 (any free one) to 65535, is 65536"),
        (["{version}", "--name", "a/b"], 2, "must be letters"),
        ([], 2, "RUN|FOLDER"),
    ],
)
def test_a_mistake_is_one_line(command_line, capsys, version, tmp_path, arguments, code, says):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    places = {"tmp": tmp_path, "version": version}
    given = command_line(capsys)("serve", *(a.format(**places) for a in arguments))
    assert given[0] == code and not given[1]
    assert says.format(**places) in given[2][-1]


def test_the_command_serves_until_it_is_stopped(run, version, answers):
    command = [sys.executable, str(ROOT / "bin" / "keras-attention"), "serve", str(run.folder)]
    command += ["--port", "0", "--grpc-port", "0", "--name", "my-model", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
    )  # fmt: skip
    try:
        facts = json.loads(process.stdout.readline())
        assert (facts["model"], facts["version"]) == ("my-model", "1")
        code, answer = ask(facts["rest"], {"instances": TEXTS})
        texts = [row["translation"] for row in answer["predictions"]]
        assert code == 200 and texts == [row["translation"] for row in answers]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and out == ""
    assert err.splitlines()[-1] == "keras-attention: stopped"
    assert "Traceback" not in err
