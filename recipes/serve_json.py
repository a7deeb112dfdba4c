"""The JSON of TensorFlow Serving's REST interface: requests to arrays, and answers to JSON."""

import base64
import json
from typing import Any

import numpy as np
from google.protobuf import json_format

from keras_attention.export.errors import telling_line

from .served_model import Refused, ServedModel, answer, require_inputs


def status(model: ServedModel, body: bytes) -> dict:
    """What answers a `GetModelStatusRequest`."""
    status = {"error_code": "OK", "error_message": ""}
    version = {"version": model.version, "state": "AVAILABLE", "status": status}
    return {"model_version_status": [version]}


def metadata(model: ServedModel, body: bytes) -> dict:
    """What answers a `GetModelMetadataRequest`: the signatures, as the file has them."""
    form = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    found = {
        name: json_format.MessageToDict(definition, **form)
        for name, definition in model.definitions.items()
    }
    return {
        "model_spec": {"name": model.name, "signature_name": "", "version": model.version},
        "metadata": {"signature_def": {"signature_def": found}},
    }


def predict(model: ServedModel, body: bytes) -> dict:
    """Answer rows (`instances`) by rows (`predictions`), columns (`inputs`) by `outputs`."""
    request = _parsed(body)
    runner = model.runner(request.get("signature_name", ""))
    if "instances" in request:
        rows = request["instances"]
        outputs = _plain(answer(runner, _tensors(runner, _columns(runner, rows))))
        for name, values in outputs.items():
            if not isinstance(values, list) or len(values) != len(rows):
                raise Refused(f"output {name!r} has no row for each instance: send inputs instead")
        if len(outputs) == 1:
            return {"predictions": next(iter(outputs.values()))}
        columns = outputs.values()
        rows = [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]
        return {"predictions": rows}
    values = request["inputs"]
    if not _is_named(values):
        values = {_only_input(runner): values}
    outputs = _plain(answer(runner, _tensors(runner, values)))
    return {"outputs": outputs if len(outputs) > 1 else next(iter(outputs.values()))}


def _parsed(body):
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the request is not JSON: {telling_line(error)}") from None
    if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
        raise Refused("the request must be a JSON object with either 'instances' or 'inputs'")
    if not isinstance(request.get("signature_name", ""), str):
        raise Refused("signature_name must be a string")
    return request


def _columns(runner, rows):
    """The values of each input, of rows that give one of each."""
    if not isinstance(rows, list) or not rows:
        raise Refused("instances must be a list of at least one")
    if not any(_is_named(row) for row in rows):
        return {_only_input(runner): rows}
    for number, row in enumerate(rows, 1):
        if not _is_named(row) or set(row) != set(runner.inputs):
            given = sorted(row) if _is_named(row) else type(row).__name__
            raise Refused(f"instance {number} must give {sorted(runner.inputs)}. Received: {given}")
    return {name: [row[name] for row in rows] for name in runner.inputs}


def _is_named(value) -> bool:
    """Whether it is an object of inputs, and not one that stands for a string of bytes."""
    return isinstance(value, dict) and set(value) != {"b64"}


def _only_input(runner):
    if len(runner.inputs) > 1:
        raise Refused(
            f"signature {runner.signature!r} takes several inputs, each by its name: "
            f"{', '.join(sorted(runner.inputs))}"
        )
    return next(iter(runner.inputs))


def _tensors(runner, values):
    require_inputs(runner, values)
    return {name: _tensor(name, values[name], dtype) for name, (_, dtype) in runner.inputs.items()}


def _tensor(name, value, dtype):
    leaves: list[Any] = []
    try:
        shape = _shape(name, value, leaves)
    except RecursionError:
        raise Refused(f"input {name!r} is nested too deeply") from None
    if dtype == "string":
        leaves, dtype = [_bytes(name, leaf) for leaf in leaves], object
    else:
        kinds = (bool,) if dtype == "bool" else (int, float)
        wrong = [leaf for leaf in leaves if type(leaf) not in kinds]
        if wrong:
            raise Refused(f"input {name!r} must be {dtype}. Received: {json.dumps(wrong[0])[:80]}")
        dtype = None if leaves else dtype  # Numbers are compared with the wanted dtype later.
    return np.array(leaves, dtype).reshape(shape)


def _shape(name, value, leaves):
    """The sizes of nested lists, whose values are put into `leaves`."""
    if not isinstance(value, list):
        leaves.append(value)
        return ()
    shapes = {_shape(name, item, leaves) for item in value}
    if len(shapes) > 1:
        raise Refused(f"input {name!r} is ragged: its rows must be padded to one length")
    return (len(value), *(shapes.pop() if shapes else ()))


def _bytes(name, value):
    try:
        if isinstance(value, str):
            return value.encode("utf-8")
        if isinstance(value, dict) and isinstance(value.get("b64"), str):
            return base64.b64decode(value["b64"], validate=True)
    except ValueError as error:
        raise Refused(f"input {name!r} is no text: {error}") from None
    raise Refused(f"input {name!r} must be string. Received: {json.dumps(value)[:80]}")


def _plain(outputs):
    """Arrays as JSON knows them; strings are text, or base64 in outputs named `..._bytes`."""
    plain = {}
    for name in sorted(outputs):
        array = outputs[name]
        if array.dtype == object:
            binary = name.endswith("_bytes")
            texts = np.empty(array.size, object)
            for i, value in enumerate(array.flat):
                coded = {"b64": base64.b64encode(value).decode()} if binary else None
                texts[i] = coded or value.decode(errors="replace")
            array = texts.reshape(array.shape)
        plain[name] = array.tolist()
    return plain
