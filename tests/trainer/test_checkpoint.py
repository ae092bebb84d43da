import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rft_core.disk import file_sha256, folder_written_whole
from rft_core.errors import CheckpointError
from rft_core.trainer import checkpoint, manifest
from rft_core.trainer.batch import Batch
from rft_core.trainer.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
MakeBatch = Callable[..., Batch]
SETTINGS = {"schedule": "cosine", "total_steps": 6, "updates_per_batch": 2, "mini_batch_groups": 2, "weight_decay": 0.1}


@pytest.fixture
def saved(trainer: MakeTrainer, random_batch: MakeBatch, tiny_folder: Path, tmp_path: Path) -> Path:
    """A checkpoint after one step."""
    this = trainer(**SETTINGS)
    this.step(1, random_batch(1))
    return _save(this, 1, tiny_folder, tmp_path / "000001")


def _save(trainer: Trainer, step: int, tokenizer_folder: Path, folder: Path) -> Path:
    with folder_written_whole(folder) as temporary:
        checkpoint.save(temporary, trainer, step, {"cursor": step}, tokenizer_folder)
    return folder


def _same_bits(a: Trainer, b: Trainer) -> bool:
    pairs = [(p, q) for p, q in zip([*a.parameters, *a.masters], [*b.parameters, *b.masters], strict=True)]
    for p, q in zip(a.masters, b.masters, strict=True):
        assert a.optimizer.state[p].keys() == b.optimizer.state[q].keys()
        pairs += [(a.optimizer.state[p][key], b.optimizer.state[q][key]) for key in a.optimizer.state[p]]
    return all(torch.equal(p, q) for p, q in pairs) and a.counters == b.counters


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_going_on_equals_never_stopping(
    dtype: str, trainer: MakeTrainer, random_batch: MakeBatch, tiny_folder: Path, tmp_path: Path
) -> None:
    never_stopped, killed, resumed = (trainer(dtype=dtype, **SETTINGS) for _ in range(3))
    resumed.step(9, random_batch(9))  # whatever it held is replaced
    for step in (1, 2, 3, 4):
        never_stopped.step(step, random_batch(step))
    for step in (1, 2):
        killed.step(step, random_batch(step))
    folder = _save(killed, 2, tiny_folder, tmp_path / "000002")
    killed.step(3, random_batch(3))
    storages = [parameter.data_ptr() for parameter in resumed.parameters]
    assert checkpoint.load(folder, resumed) == {"cursor": 2}
    assert [parameter.data_ptr() for parameter in resumed.parameters] == storages
    figures = [resumed.step(step, random_batch(step)) for step in (3, 4)]
    assert _same_bits(resumed, never_stopped)
    assert not _same_bits(resumed, killed)
    assert figures[0]["trainer/num_updates"] == 4


def test_a_trainer_that_never_updated_comes_back(trainer: MakeTrainer, random_batch: MakeBatch, tiny_folder: Path, tmp_path: Path) -> None:
    fresh, resumed = trainer(**SETTINGS), trainer(**SETTINGS)
    folder = _save(fresh, 0, tiny_folder, tmp_path / "000000")
    resumed.step(1, random_batch(5))
    checkpoint.load(folder, resumed)
    for this in (fresh, resumed):
        this.step(1, random_batch(1))
    assert _same_bits(fresh, resumed)


def test_random_numbers_go_on(trainer: MakeTrainer, tiny_folder: Path, tmp_path: Path) -> None:
    this = trainer()
    folder = _save(this, 0, tiny_folder, tmp_path / "000000")
    expected = torch.rand(3)
    checkpoint.load(folder, this)
    assert torch.equal(torch.rand(3), expected)


def test_the_model_is_an_ordinary_folder(saved: Path) -> None:
    AutoModelForCausalLM.from_pretrained(saved / checkpoint.MODEL)
    assert (saved / checkpoint.MODEL / "tokenizer.json").exists()
    assert manifest.verify(saved) == 1
    hashes = checkpoint.model_hashes(saved)
    assert hashes == {path.name: file_sha256(path) for path in (saved / checkpoint.MODEL).iterdir()}
    assert "model.safetensors" in hashes


FILES = ["model/model.safetensors", "model/config.json", "optimizer.safetensors", "trainer.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "torn", "altered"])
def test_damage_is_an_error_that_names_the_file(name: str, damage: str, saved: Path, trainer: MakeTrainer) -> None:
    path = saved / name
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    this = trainer(**SETTINGS)
    with pytest.raises(CheckpointError, match=name):
        checkpoint.load(saved, this)
    assert this.counters.updates == 0


def test_no_manifest_is_no_checkpoint(saved: Path, trainer: MakeTrainer) -> None:
    (saved / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"no readable manifest\.json"):
        checkpoint.load(saved, trainer())


def test_a_newer_format_is_refused(saved: Path) -> None:
    file = saved / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointError, match="format 99, newer"):
        manifest.verify(saved)
    # It is not passed over: starting again from an older one would throw work away without a word.
    assert checkpoint.newest(saved.parent) == saved


def test_a_checkpoint_in_another_dtype_is_refused(saved: Path, trainer: MakeTrainer) -> None:
    with pytest.raises(CheckpointError, match="another dtype"):
        checkpoint.load(saved, trainer(dtype="bfloat16"))


def test_newest_is_by_number_and_complete(saved: Path) -> None:
    folder = saved.parent
    for name in ("000005", "9", "10", "11", "12", ".000013.tmp-1a2b3c4d", "best"):
        shutil.copytree(saved, folder / name)
    (folder / "11" / "optimizer.safetensors").write_bytes(b"torn")
    (folder / "12" / "manifest.json").unlink()
    newest = checkpoint.newest(folder)
    assert newest is not None and newest.name == "10"
    shutil.rmtree(folder / "10")
    newest = checkpoint.newest(folder)
    assert newest is not None and newest.name == "9"


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path / "not-there") is None
