"""Serve a SavedModel on this machine, in the predict format of TensorFlow Serving.

It is for development: one process, one version, no batching of requests. What talks to it talks
to TensorFlow Serving without a change.
"""

import contextlib
import errno
import json
import math
import re
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from keras_attention.export.errors import telling_line
from keras_attention.export.quiet import quiet

from . import serve_json
from .errors import RunError
from .served_model import LARGEST_REQUEST, Refused, ServedModel, answer, require_inputs, version_of
from .terminal import news

LONGEST_WAIT = 60  # seconds for the next bytes of a client
# What a request is refused with: the names are gRPC's, the numbers HTTP's.
_STATUS = {"INVALID_ARGUMENT": 400, "FAILED_PRECONDITION": 400, "NOT_FOUND": 404}
_PATH = re.compile(r"/v1/models/([^/:]+)(?:/versions/(\d+))?(/metadata|:predict)?")


class Served(NamedTuple):
    """What is served, and where.

    Attributes:
        model: its name, version and signatures.
        rest: the address of its predictions by HTTP.
        grpc: `HOST:PORT` of its gRPC service; None without tensorflow-serving-api.
    """

    model: ServedModel
    rest: str
    grpc: str | None


@contextlib.contextmanager
def serving(
    place: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8501,
    grpc_port: int = 8500,
    name: str = "translation",
    report: Callable[[str], None] = news,
) -> Iterator[Served]:
    """Within it, a SavedModel is served by HTTP and, where its package is installed, by gRPC.

    Args:
        place: a run that was exported, or a SavedModel's folder, with or without its version.
        host: the address to listen on.
        port: of HTTP; 0 for a free one.
        grpc_port: of gRPC; 0 for a free one.
        name: what the model is called in requests.
        report: is told every request, and what is missing.

    Raises:
        RunError: where there is no SavedModel, or a port is taken.
    """
    folder = version_of(Path(place))
    with contextlib.ExitStack() as stack:
        # Ports first: who has to choose another one should not wait for the model.
        rest = stack.enter_context(_rest_server(host, port, report))
        grpc, grpc_port = _grpc_server(host, grpc_port, report)
        if grpc:
            stack.callback(lambda: grpc.stop(grace=1).wait())
        rest.model = model = ServedModel(folder, name)
        loop = threading.Thread(target=rest.serve_forever, daemon=True)
        loop.start()
        stack.callback(loop.join)
        stack.callback(rest.shutdown)
        if grpc:
            _serve_grpc(grpc, model)
        address = f"http://{host}:{rest.server_port}/v1/models/{name}:predict"
        yield Served(model, address, f"{host}:{grpc_port}" if grpc else None)


def _unexpected(error):
    return f"{type(error).__name__}: {telling_line(error)}"


# By HTTP.


class _RestServer(ThreadingHTTPServer):
    model: ServedModel
    report: Callable[[str], None]

    def handle_error(self, request, client_address):
        if isinstance(sys.exception(), OSError):
            self.report(f"{client_address[0]} has gone before its answer")
        else:
            super().handle_error(request, client_address)


def _rest_server(host, port, report):
    try:
        server = _RestServer((host, port), _Handler)
    except OSError as error:
        raise _not_listening(host, port, "--port", error) from error
    server.report = report
    return server


def _not_listening(host, port, option, error):
    if error is None or error.errno == errno.EADDRINUSE:
        return RunError(f"port {port} of {host} is in use: take another by {option}, or 0 for any")
    return RunError(f"cannot listen on {host}, port {port}: {error.strerror or error}")


class _Handler(BaseHTTPRequestHandler):
    server: _RestServer
    protocol_version = "HTTP/1.1"
    timeout = LONGEST_WAIT

    def do_GET(self):
        self._answer({None: serve_json.status, "/metadata": serve_json.metadata})

    def do_POST(self):
        self._answer({":predict": serve_json.predict})

    def _answer(self, places):
        model = self.server.model
        try:
            body = self._body()
            path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
            found = _PATH.fullmatch(path)
            if not found or found[3] not in places:
                raise Refused(f"Malformed request: {self.command} {path}", "NOT_FOUND")
            model.require(found[1], found[2])
            status, content = 200, places[found[3]](model, body)
        except Refused as error:
            status, content = _STATUS[error.code], {"error": str(error)}
        except OSError:
            raise
        except Exception as error:
            status, content = 500, {"error": _unexpected(error)}
        self._send(status, content)

    def _body(self) -> bytes:
        # Read to its end even where it is too large: who still writes does not read the answer.
        body, size = [], 0
        for piece in self._pieces():
            size += len(piece)
            if size <= LARGEST_REQUEST:
                body.append(piece)
        if size > LARGEST_REQUEST:
            raise Refused(f"the request has {size} bytes, {LARGEST_REQUEST} are the most")
        return b"".join(body)

    def _pieces(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            yield from self._read(self.headers.get("Content-Length", "0"), 10)
            return
        while (line := self.rfile.readline(64).split(b";")[0].strip()) != b"0":
            yield from self._read(line, 16)
            self.rfile.readline(64)
        while self.rfile.readline(2**16).strip():
            pass  # Headers may follow.

    def _read(self, size, base):
        try:
            left = int(size, base)
        except ValueError:
            self.close_connection = True  # Where the next request would begin is not known.
            raise Refused("the request does not say how long it is") from None
        while left > 0 and (piece := self.rfile.read(min(left, 2**16))):
            left -= len(piece)
            yield piece

    def _send(self, status, content):
        body = (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8", "replace")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code, message=None, explain=None):
        """Of a request that is none of HTTP: JSON too, where the base class sends a page."""
        self.close_connection = True
        self._send(code, {"error": message or self.responses[code][0]})

    def log_message(self, format, *values):
        line = f"{self.address_string()} {format % values}"
        self.server.report("".join(c if c.isprintable() else "?" for c in line))


# By gRPC.


def _grpc_server(host, port, report):
    """A gRPC server and its port; None where the package of its messages is missing."""
    try:
        import grpc
        import tensorflow_serving.apis  # noqa: F401
    except ImportError:
        report(
            "REST alone: gRPC needs tensorflow-serving-api, "
            "pip install 'keras-attention-layers[serving]'"
        )
        return None, None
    options = [
        ("grpc.max_receive_message_length", LARGEST_REQUEST),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),  # Otherwise two servers share a port, and nobody is told.
    ]
    server = grpc.server(ThreadPoolExecutor(max_workers=4), options=options)
    try:
        with quiet():
            return server, server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise _not_listening(host, port, "--grpc-port", None) from error


def _serve_grpc(server, model):
    import grpc
    from tensorflow_serving.apis import (
        get_model_metadata_pb2,
        predict_pb2,
        prediction_service_pb2_grpc,
    )

    @contextlib.contextmanager
    def aborting(context):
        try:
            yield
        except Refused as error:
            code, reason = getattr(grpc.StatusCode, error.code), str(error)
        except Exception as error:
            code, reason = grpc.StatusCode.INTERNAL, _unexpected(error)
        else:
            return
        context.abort(code, reason)

    def require(spec):
        if spec.version_label:
            raise Refused("versions have numbers here, and no labels")
        model.require(spec.name, str(spec.version.value) if spec.HasField("version") else None)

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            with aborting(context):
                require(request.model_spec)
                runner = model.runner(request.model_spec.signature_name)
                require_inputs(runner, request.inputs)
                inputs = {
                    name: _of_proto(name, request.inputs[name], dtype)
                    for name, (_, dtype) in runner.inputs.items()
                }
                wanted = list(request.output_filter) or list(runner.outputs)
                unknown = set(wanted) - set(runner.outputs)
                if unknown:
                    raise Refused(f"output_filter names no output: {', '.join(sorted(unknown))}")
                outputs = answer(runner, inputs)
                response = predict_pb2.PredictResponse(
                    outputs={name: tf.make_tensor_proto(outputs[name]) for name in wanted}
                )
                response.model_spec.name = model.name
                response.model_spec.version.value = int(model.version)
                response.model_spec.signature_name = runner.signature
                return response

        def GetModelMetadata(self, request, context):
            with aborting(context):
                require(request.model_spec)
                if list(request.metadata_field) != ["signature_def"]:
                    raise Refused("metadata_field must be signature_def")
                found = get_model_metadata_pb2.SignatureDefMap(signature_def=model.definitions)
                response = get_model_metadata_pb2.GetModelMetadataResponse()
                response.model_spec.name = model.name
                response.model_spec.version.value = int(model.version)
                response.metadata["signature_def"].Pack(found)
                return response

    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    server.start()


def _of_proto(name, proto, dtype):
    try:
        given = tf.as_dtype(proto.dtype).name
        size = math.prod(dim.size for dim in proto.tensor_shape.dim)
        # One number may stand for a tensor of any size.
        if size > LARGEST_REQUEST:
            raise Refused(f"input {name!r} has {size} elements, {LARGEST_REQUEST} are the most")
        if given == dtype:
            return tf.make_ndarray(proto)
    except (TypeError, ValueError) as error:
        raise Refused(f"input {name!r} is no tensor: {telling_line(error)}") from error
    raise Refused(f"input {name!r} must be {dtype}. Received: {given}")
