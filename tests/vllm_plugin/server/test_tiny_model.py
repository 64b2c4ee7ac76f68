"""``builtin:tiny``: written once, and a model whose output depends on the prompt."""

import functools
from pathlib import Path

import pytest

from sloserve.vllm_plugin.server import tiny_model


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """An empty cache folder, and in place of the model a file; returns the folders that were written."""
    written: list[Path] = []

    def write(folder: Path) -> None:
        written.append(folder)
        (folder / "config.json").write_text("{}")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tiny_model, "_write_model", write)
    return written


def test_other_names_are_left_alone(writes: list[Path]) -> None:
    assert tiny_model.resolve_model("meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B"
    assert not writes


def test_is_written_once(writes: list[Path], tmp_path: Path) -> None:
    first = tiny_model.resolve_model("builtin:tiny")
    assert first == tiny_model.resolve_model("builtin:tiny")
    assert len(writes) == 1
    assert (Path(first) / "config.json").exists()
    assert list((tmp_path / "sloserve").iterdir()) == [Path(first)]


def test_half_written_folder_is_never_seen(writes: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise OSError("disk full")

    monkeypatch.setattr(tiny_model, "_write_model", fail)
    with pytest.raises(OSError, match="disk full"):
        tiny_model.tiny_model_path()
    assert not list((tmp_path / "sloserve").iterdir())


def test_second_process_may_be_first(writes: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def overtaken(folder: Path) -> None:
        other = folder.parent / folder.name.rpartition(".")[0]
        other.mkdir()
        (other / "config.json").write_text("{}")
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(tiny_model, "_write_model", overtaken)
    path = tiny_model.tiny_model_path()
    assert list((tmp_path / "sloserve").iterdir()) == [path]


@pytest.mark.slow
def test_outputs_differ_by_prompt_and_are_readable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # One thread: others would only wait for each other, at full speed.
    request.addfinalizer(functools.partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(1)
    state = torch.random.get_rng_state()
    path = tiny_model.tiny_model_path()
    assert torch.equal(torch.random.get_rng_state(), state)

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    assert tokenizer.decode(tokenizer.encode("naïve 漢字\n")) == "naïve 漢字\n"
    assert model.config.max_position_embeddings == tiny_model.CONTEXT_TOKENS

    prompts = [f"Request {i}: tell me about the sea" for i in range(24)]
    outputs = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        with torch.no_grad():
            new = model.generate(ids, max_new_tokens=64, do_sample=False)[0, ids.shape[1] :]
        outputs.append(tokenizer.decode(new, skip_special_tokens=True))
    assert len(set(outputs)) == len(prompts)
    assert all(text.isascii() and text.isprintable() for text in outputs)
    assert sorted(map(len, outputs))[len(outputs) // 2] > 32
