"""ONNX files of the tests' models, by PyTorch's exporter, with weights that are not there.

The data of all weights are said to lie in a file that does not exist: an estimate needs none.
"""

import io
import warnings

import onnx
import torch


def export(make_model, sample, path, dynamic=None):
    """Writes the model to `path`; `dynamic` names symbolic dimensions of its input."""
    inputs = sample()
    model = make_model().eval()
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tracing warns of shapes that become constants
        torch.onnx.export(
            model, (inputs,), buffer, dynamo=False, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": dynamic} if dynamic else None, export_params=False,
            training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False,
        )  # fmt: skip
    exported = onnx.load_model_from_string(buffer.getvalue())
    _weights_elsewhere(exported)
    path.write_bytes(exported.SerializeToString())
    return path


def _weights_elsewhere(exported):
    graph = exported.graph
    weights = [one for one in graph.input if one.name != "x"]
    for weight in weights:
        kind = weight.type.tensor_type
        tensor = onnx.TensorProto(
            name=weight.name, data_type=kind.elem_type, dims=[d.dim_value for d in kind.shape.dim],
            data_location=onnx.TensorProto.EXTERNAL,
        )  # fmt: skip
        tensor.external_data.add(key="location", value="not-there.bin")
        graph.initializer.append(tensor)
        graph.input.remove(weight)
