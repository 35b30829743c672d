"""Messages: generated code matches the .proto files, and conversion is lossless."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.node.admission.admit import Request
from penstock.node.admission.resize import Resize
from penstock.node.rpc import convert
from penstock_api.v1 import agent_pb2

PROTO = Path(__file__).parents[2] / "proto"
words = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)
permille = st.integers(1, 1000)


def test_generated_code_is_what_the_proto_files_say(tmp_path):
    """If this fails, run `make proto`."""
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    files = [str(file.relative_to(PROTO)) for file in PROTO.glob("**/*.proto")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=.", *outputs, *files]
    subprocess.run(command, cwd=PROTO, check=True)
    made = sorted(tmp_path.glob("**/*_pb2*"))
    assert len(made) == 3 * len(files)
    for file in made:
        assert file.read_text() == (PROTO / file.relative_to(tmp_path)).read_text(), file.name


@given(
    st.builds(
        Request,
        command=st.lists(words, min_size=1).map(tuple),
        memory_bytes=st.none() | st.lists(st.integers(0, 2**63), min_size=1),
        cores_permille=st.none() | st.lists(permille, min_size=1),
        mode=st.sampled_from(["strict", "elastic"]),
        devices=st.lists(words).map(tuple),
        count=st.integers(1, 16),
        name=st.none() | words.filter(bool),
        oversubscribe=st.booleans(),
        policy=st.none() | words.filter(bool),
        allow_unknown=st.booleans(),
        candidates=st.lists(words).map(tuple),
        lifetime=st.sampled_from(["processes", "until-revoked"]),
        measured=st.sampled_from(["deny", "throttle", "suspend", "terminate"]),
        grace_ns=st.integers(0, 24 * 3600 * 10**9),
        labels=st.dictionaries(words, words),
        request_id=words,
    )
)
def test_a_request_comes_out_as_it_went_in(request):
    message = agent_pb2.GrantRequest.FromString(convert.request_to(request).SerializeToString())
    assert convert.request_of(message) == request


@given(
    st.builds(
        Resize,
        memory_bytes=st.none() | st.integers(0, 2**63),
        cores_permille=st.none() | permille,
        mode=st.none() | st.sampled_from(["strict", "elastic"]),
        device=st.none() | words.filter(bool),
        oversubscribe=st.booleans(),
    )
)
def test_a_change_comes_out_as_it_went_in(change):
    message = convert.resize_to("t", change)
    message = agent_pb2.ResizeRequest.FromString(message.SerializeToString())
    assert convert.resize_of(message) == change
