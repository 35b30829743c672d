"""ONNX files: symbolic dimensions, operations one by one, and files that are damaged."""

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from tests.estimate_torch import closed_formulas
from tests.estimate_torch.exported import export
from tests.estimate_torch.models.transformers import small_gpt

import penstock

torch.set_num_threads(1)


def tensor(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name, *dims, kind=TensorProto.FLOAT):
    """A weight whose data lie in a file that is not there."""
    one = TensorProto(name=name, data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    one.external_data.add(key="location", value="/not/there")
    return one


def write(path, nodes, inputs, weights=(), *, domains=()):
    graph = helper.make_graph(nodes, "g", inputs, [tensor("y", None)], initializer=weights)
    imports = [helper.make_opsetid("", 24), *(helper.make_opsetid(one, 1) for one in domains)]
    path.write_bytes(helper.make_model(graph, opset_imports=imports).SerializeToString())
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.onnx"


def node(kind, *inputs, **attributes):
    return helper.make_node(kind, list(inputs), ["y"], **attributes)


OPERATIONS = {  # node, inputs, weights, FLOPs forward, and how often that backward
    "gemm": (
        node("Gemm", "x", "w", "b", transB=1), [("x", [4, 8])], [("w", 6, 8), ("b", 6)],
        2 * 4 * 8 * 6, 1,
    ),
    "gemm transposed": (
        node("Gemm", "x", "w", transA=1), [("x", [8, 4])], [("w", 8, 6)], 2 * 4 * 8 * 6, 1
    ),
    "matmul of vector": (node("MatMul", "x", "w"), [("x", [8])], [("w", 8, 6)], 2 * 8 * 6, 1),
    "grouped convolution": (
        node("Conv", "x", "w", group=2), [("x", [2, 4, 9])], [("w", 6, 2, 3)],
        2 * (2 * 6 * 7) * 2 * 3, 1,
    ),
    "transposed convolution": (
        node("ConvTranspose", "x", "w", strides=[2, 2]), [("x", [2, 4, 5, 5])], [("w", 4, 6, 3, 3)],
        2 * (2 * 4 * 25) * 6 * 9, 1,
    ),
    "einsum": (
        node("Einsum", "x", "w", equation="...i, ij -> ...j"), [("x", [3, 4, 8])], [("w", 8, 6)],
        2 * 12 * 8 * 6, 1,
    ),
    "lstm in two directions": (
        node("LSTM", "x", "w", "r", hidden_size=16, direction="bidirectional"), [("x", [5, 2, 8])],
        [("w", 2, 64, 8), ("r", 2, 64, 16)], 2 * 2 * 10 * 4 * 16 * (8 + 16), None,
    ),
    "gru": (
        node("GRU", "x", "w", "r", hidden_size=16), [("x", [5, 2, 8])],
        [("w", 1, 48, 8), ("r", 1, 48, 16)], 2 * 10 * 3 * 16 * (8 + 16), None,
    ),
    "attention": (
        node("Attention", "q", "k", "v"), [("q", [2, 4, 6, 8]), ("k", [2, 4, 7, 8]),
        ("v", [2, 4, 7, 8])], [], 2 * 2 * (2 * 4 * 6 * 7 * 8), 0,
    ),
    "attention, heads in the width": (
        node("Attention", "q", "k", "v", q_num_heads=4, kv_num_heads=2),
        [("q", [2, 6, 32]), ("k", [2, 7, 16]), ("v", [2, 7, 16])], [],
        2 * 2 * (2 * 4 * 6 * 7 * 8), 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OPERATIONS)
def test_an_operation_has_its_flops(case, file):
    made, inputs, weights, forward, times = OPERATIONS[case]
    write(file, [made], [tensor(*one) for one in inputs], [weight(*one) for one in weights])
    work = penstock.estimate(file).work
    assert not work.unknown
    assert work.flops["forward"] == forward
    if times is not None:  # the input needs no gradient
        assert work.flops["backward"] == times * forward


def test_the_backward_of_attention_computes_its_scores_again(file):
    heads = node("Attention", "q", "k", "v")
    project = helper.make_node("MatMul", ["x", "w"], ["q"])
    others = [tensor(name, [2, 4, 6, 8]) for name in ("x", "k", "v")]
    write(file, [project, heads], others, [weight("w", 8, 8)])
    work = penstock.estimate(file).work
    assert work.by_operation["Attention backward"] == 5 * work.by_operation["Attention"] / 2


@pytest.mark.parametrize(
    ("made", "domains", "name"),
    [
        (node("MultiHeadAttention", "x", domain="com.microsoft"), ["com.microsoft"],
         "com.microsoft.MultiHeadAttention"),
        (node("MatMul", "x", "x", domain="mine"), ["mine"], "mine.MatMul"),
        (node("Det", "x"), [], "Det"),
        (node("Einsum", "x", "x", "x", equation="ij,jk,kl->il"), [],
         "Einsum (only products of two operands are known)"),
    ],
)  # fmt: skip
def test_an_operation_that_is_not_known_is_named(file, made, domains, name):
    write(file, [made], [tensor("x", [4, 4])], domains=domains)
    work = penstock.estimate(file, training=False).work
    assert {key: one.calls for key, one in work.unknown.items()} == {name: 1}
    assert work.unknown[name].elements == 16


def test_a_product_of_a_size_that_only_data_decide_is_named(file):
    chosen = helper.make_node("NonZero", ["x"], ["places"])
    cast = helper.make_node("Cast", ["places"], ["floats"], to=TensorProto.FLOAT)
    turned = helper.make_node("Transpose", ["floats"], ["rows"])
    product = node("MatMul", "rows", "w")
    write(file, [chosen, cast, turned, product], [tensor("x", [4, 4])], [weight("w", 2, 8)])
    work = penstock.estimate(file).work
    assert list(work.unknown) == ["MatMul (shapes are not known)"]


@pytest.fixture(scope="module")
def symbolic(tmp_path_factory):
    path = tmp_path_factory.mktemp("symbolic") / "gpt.onnx"
    sample = lambda: torch.ones(2, 16, dtype=torch.long)  # noqa: E731 - as the exporter wants it
    return export(small_gpt, sample, path, {0: "N", 1: "T"})


def test_symbolic_dimensions_take_the_sizes_that_are_given(symbolic):
    for batch, length in ((1, 64), (8, 32)):
        found = penstock.estimate(symbolic, dims={"N": batch, "T": length})
        expected = closed_formulas.gpt2(
            batch, length, width=128, layers=4, words=1000, recomputed=False
        )
        assert found.work.flops["forward"] == expected.forward
        assert found.work.flops["backward"] == expected.backward
        assert not found.work.unknown
        assert found.samples == batch


@pytest.mark.parametrize(
    ("dims", "word"),
    [({}, "--dim N=… --dim T=…"), ({"N": 1}, "--dim T=…"), ({"N": 1, "t": 1}, "did you mean 'T'")],
)
def test_a_missing_or_wrong_dimension_is_named(symbolic, dims, word):
    with pytest.raises(penstock.PenstockError, match=word):
        penstock.estimate(symbolic, dims=dims)


def test_an_input_without_a_shape_is_named(file):
    write(file, [node("Relu", "x")], [tensor("x", None)])
    with pytest.raises(penstock.PenstockError, match="'x' has no shape"):
        penstock.estimate(file)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"import torch\n" * 50, b"\xff" * 300])
def test_a_file_that_is_no_onnx_model_is_refused(file, content):
    file.write_bytes(content)
    with pytest.raises(penstock.PenstockError, match="no ONNX model"):
        penstock.estimate(file)


def test_a_file_cut_at_any_place_is_refused(symbolic, file):
    whole = symbolic.read_bytes()
    for part in range(1, 40):
        file.write_bytes(whole[: len(whole) * part // 40])
        with pytest.raises(penstock.PenstockError):
            penstock.estimate(file, dims={"N": 1, "T": 8})


def test_a_constant_of_an_enormous_size_is_not_made(file):
    shape = onnx.numpy_helper.from_array(torch.tensor([2**20, 2**20]).numpy(), "shape")
    made = helper.make_node("ConstantOfShape", ["shape"], ["large"])
    write(file, [made, node("MatMul", "large", "w")], [], [shape, weight("w", 2**20, 1)])
    found = penstock.estimate(file, training=False)
    assert found.work.unknown or found.work.total_flops == 2**41


def test_a_product_with_what_nobody_makes_is_named(file):
    write(file, [node("MatMul", "nowhere", "w")], [], [weight("w", 4, 4)])
    assert penstock.estimate(file).work.unknown
