"""The environment of ``make compat KERNELS=...`` has the packages that the newer vLLM requires."""

from tests.compat.overlay_vllm import requirements

_METADATA = """Metadata-Version: 2.4
Name: vllm
Version: 0.33.0
Requires-Dist: orjson>=3.11.6
Requires-Dist: multidict>=6.9.1
Requires-Dist: six>=1.16.0; python_version < "3"
Requires-Dist: protobuf>=5.29.6; platform_machine != "pdp11"
Requires-Dist: torch==2.14.0
Requires-Dist: nvidia-cutlass-dsl[cu13]==4.8.0
Requires-Dist: FlashInfer_Python==0.7.2.post1
Requires-Dist: fastsafetensors>=0.3.3
Requires-Dist: pandas; extra == "bench"
Requires-Dist: mistral_common[image]>=1.11.6
Provides-Extra: bench

The description, which names no package: Requires-Dist: nothing
"""


def test_packages_of_the_new_version_are_installed_but_not_those_of_its_kernels() -> None:
    assert requirements(_METADATA) == [
        "orjson>=3.11.6", "multidict>=6.9.1", "protobuf>=5.29.6", "mistral_common[image]>=1.11.6",
    ]  # fmt: skip


def test_a_version_without_requirements_needs_nothing() -> None:
    assert requirements("Name: vllm\nVersion: 0.1\n") == []
