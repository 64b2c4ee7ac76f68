"""The messages are those of ``protos``, and Envoy's: gRPC's distribution of Envoy's protos has the same fields."""

import subprocess
import sys
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest

from sloserve.fleet.beside.endpoint_picker import messages

PROTOS = Path(messages.__file__).parent / "protos"
FIELDS = """
import sys
from google.protobuf import descriptor_pb2, descriptor_pool
from envoy.service.ext_proc.v3 import external_processor_pb2

pool = descriptor_pool.Default()
ours = descriptor_pb2.FileDescriptorSet.FromString(open(sys.argv[1], "rb").read())

def compare(message, theirs):
    oneofs = [one.name for one in message.oneof_decl]
    for field in message.field:
        other = theirs.fields_by_name[field.name]
        name = other.containing_oneof.name if other.containing_oneof else None
        assert (field.number, field.type) == (other.number, other.type), (theirs.full_name, field.name)
        assert name == (oneofs[field.oneof_index] if field.HasField("oneof_index") else None), field.name
        target = other.message_type or other.enum_type
        assert field.type_name == ("." + target.full_name if target else ""), (theirs.full_name, field.name)
    for enum in message.enum_type:
        known = {value.name: value.number for value in theirs.enum_types_by_name[enum.name].values}
        assert {value.name: value.number for value in enum.value}.items() <= known.items(), enum.name

compared = 0
for file in ours.file:
    for message in file.message_type if file.package.startswith("envoy") else ():
        compare(message, pool.FindMessageTypeByName(f"{file.package}.{message.name}"))
        compared += 1
print(compared)
"""


@pytest.mark.slow
def test_the_descriptors_are_compiled_of_the_protos(tmp_path: Path) -> None:
    made = tmp_path / messages.DESCRIPTORS
    own = files("grpc_tools") / "_proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"-I{own}", "--include_imports"]
    command += [f"--descriptor_set_out={made}", "external_processor.proto"]
    subprocess.run(command, check=True, timeout=120)
    kept = PROTOS.parent / messages.DESCRIPTORS
    again = f"{' '.join(command[1:5])} --descriptor_set_out={kept.relative_to(Path.cwd())} external_processor.proto"
    assert made.read_bytes() == kept.read_bytes(), f"write it again: python {again}"


@pytest.mark.slow
def test_every_field_is_one_of_envoy_s(tmp_path: Path) -> None:
    """xds-protos is looked at, not installed: it brings files of other distributions, in other versions."""
    fetched = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", tmp_path, "xds-protos"],
        capture_output=True,
        timeout=300,
    )
    wheels = list(tmp_path.glob("xds_protos*.whl"))
    if fetched.returncode or not wheels:
        pytest.skip("xds-protos cannot be fetched")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(tmp_path / "unpacked")
    compared = subprocess.run(
        [sys.executable, "-c", FIELDS, PROTOS.parent / messages.DESCRIPTORS],
        env={"PYTHONPATH": str(tmp_path / "unpacked")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert compared.returncode == 0, compared.stderr
    assert int(compared.stdout) >= 18
