"""Opening data sets, reading them, and choosing parts of them."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

import foreload as fl
from foreload import errors
from small import CLASSES, COUNT, content, number_of, tar_shard


def test_importing_needs_no_torch_and_starts_nothing() -> None:
    program = """
import sys, time, threading
begun = time.process_time()
import foreload
took_s = time.process_time() - begun
assert "torch" not in sys.modules
assert threading.active_count() == 1
later = {"foreload._predict.planning", "foreload._data.mixture", "foreload._run.arrays", "foreload.sim"}
assert not later & set(sys.modules)
assert set(foreload.__all__) <= set(dir(foreload))
assert {foreload.plan.__module__, foreload.Mixture.__module__, foreload.NumpyLoader.__module__, foreload.sim.__name__} == later
print(took_s)
"""

    def cpu_s() -> float:
        return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)

    # It takes 0.2 s, half of which is NumPy. Neighbours slow some runs more than others.
    assert any(cpu_s() < 0.5 for _ in range(5))


def test_a_folder_has_its_classes_and_labels(data: Any) -> None:
    assert len(data) == COUNT
    assert data.classes == list(CLASSES)
    assert data.class_to_idx == {"cat": 0, "dog": 1, "eel": 2}
    assert data.format == "folder"
    assert data.labels.tolist() == [CLASSES.index(Path(data.key(i)).parent.name) for i in range(COUNT)]
    assert data.lengths.tolist() == [len(content(number_of(data.key(i)))) for i in range(COUNT)]
    assert data.nbytes == data.lengths.sum()


def test_an_item_has_the_objects_bytes(data: Any) -> None:
    for at in (0, 5, COUNT - 1, -1):
        item = data[at]
        assert item.bytes == content(number_of(item.key))
        assert item.label == data.label(at)
        assert data.url_of(at) == f"s3://data/train/{item.key}"
    with pytest.raises(IndexError):
        data[COUNT]


def test_a_flat_prefix_has_no_labels(home: Any) -> None:
    data = fl.open("s3://data/flat")
    assert data.labels.tolist() == [-1] * 10
    assert [data[i].bytes for i in range(10)] == [b"%d" % i for i in range(10)]
    assert data[3].label is None


@pytest.mark.parametrize(
    "name", ["shard.00000.mds", "shard.00000.mds.zstd", "train-00000.tfrecord", "a.beton", "t.lance/data/0.lance"]
)
def test_shards_of_another_format_are_not_taken_for_samples(home: Any, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"many samples")
    (tmp_path / "index.json").write_bytes(b"{}")
    with pytest.raises(errors.InvalidError, match=rf"{re.escape(name)}: shards of .* are not read.*format='flat'"):
        fl.open(tmp_path)
    assert b"many samples" in [sample.bytes for sample in fl.open(tmp_path, "flat")]


def test_parts_are_data_sets_of_their_own(data: Any) -> None:
    parts = data.split({"train": 0.8, "val": 0.2}, seed=3)
    assert [len(part) for part in parts.values()] == [162, 41]
    keys = [{part.key(i) for i in range(len(part))} for part in parts.values()]
    assert not keys[0] & keys[1]
    assert len(keys[0] | keys[1]) == COUNT
    again = data.split({"train": 0.8, "val": 0.2}, seed=3)
    assert again["train"].digest == parts["train"].digest
    assert data.split({"train": 0.8, "val": 0.2}, seed=4)["train"].digest != parts["train"].digest

    dogs = data.filter(lambda key, label, length: label == 1 and length > 0)
    assert set(dogs.labels.tolist()) == {1}
    assert dogs[0].bytes == content(number_of(dogs.key(0)))

    part = data[10:20]
    assert [part.key(i) for i in range(10)] == [data.key(i) for i in range(10, 20)]
    of_part = part.select([9, 0])
    assert [of_part.key(0), of_part.key(1)] == [data.key(19), data.key(10)]
    assert len(data.select(data.labels == 2)) == (data.labels == 2).sum()


@pytest.mark.parametrize("wrong", [[], [COUNT], [-COUNT - 1], [0.5], [[1]], np.ones(3, dtype=bool)])
def test_a_choice_that_makes_no_sense_is_refused(data: Any, wrong: Any) -> None:
    with pytest.raises((errors.InvalidError, IndexError)):
        data.select(wrong)


def test_data_sets_travel_without_their_index(data: Any) -> None:
    part = data.select(range(100))
    copy = pickle.loads(pickle.dumps(part))
    assert len(pickle.dumps(data)) < 2000
    assert (copy.digest, copy[3].bytes) == (part.digest, part[3].bytes)


def test_the_index_is_found_again(data: Any, bucket: Any) -> None:
    assert data.origin == "listed"
    bucket.reset()
    again = fl.open("s3://data/train")
    assert again.digest == data.digest
    assert "list" not in {name for name, count in bucket.counters()["requests"].items() if count}


def test_an_index_of_another_url_is_refused(data: Any, tmp_path: Path) -> None:
    saved = tmp_path / "train.flx"
    saved.write_bytes(data._index.to_bytes())
    for same in ("s3://data/train", "s3://data/train/", "s3a://data/train"):
        assert fl.open(same, index=saved).digest == data.digest
    for other in ("s3://data/fixed", "s3://data", str(tmp_path), "gs://data/train", "s3://data/train-{0..9}.tar"):
        with pytest.raises(errors.InvalidError, match="s3://data/train.*" + re.escape(other)):
            fl.open(other, index=saved)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "1.x").write_bytes(b"1")
    local = fl.open(tmp_path / "a b", "flat")
    saved.write_bytes(local._index.to_bytes())
    assert fl.open(f"file://{tmp_path}/a%20b/", index=saved).digest == local.digest
    with pytest.raises(errors.NotFoundError, match=re.escape("no file /nope.flx")):
        fl.open("s3://data/train", index="/nope.flx")
    (tmp_path / "no.flx").write_bytes(b"no index")
    with pytest.raises(errors.CorruptError, match=re.escape(f"index {tmp_path}/no.flx")):
        fl.open("s3://data/train", index=tmp_path / "no.flx")
    for url in (saved, f"file://{saved}"):
        with pytest.raises(errors.InvalidError, match="is a single file"):
            fl.open(url)
    with pytest.raises(errors.InvalidError, match="is a directory"):
        fl.open("s3://data/train", index=tmp_path)


def test_an_index_of_other_shards_is_refused(home: Any, tmp_path: Path) -> None:
    for name in ("train", "val"):
        for number in range(2):
            tar_shard(tmp_path / f"{name}-{number:03}.tar", {f"{number}.bin": b""})
    train = fl.open(f"{tmp_path}/train-{{000..001}}.tar")
    saved = tmp_path / "train.flx"
    saved.write_bytes(train._index.to_bytes())
    assert fl.open(f"{tmp_path}/train-*.tar", index=saved).digest == train.digest
    with pytest.raises(errors.InvalidError, match="other shards"):
        fl.open(f"{tmp_path}/val-{{000..001}}.tar", index=saved)
    with pytest.raises(errors.InvalidError, match="more than 1000000 names"):
        fl.open(f"{tmp_path}/train-{{0..99999999}}.tar", index=saved)


def test_an_index_of_another_manifest_is_refused(home: Any, tmp_path: Path) -> None:
    """Of the same objects, beside the other: it would train on the wrong ones, or with the wrong labels."""
    for number in range(4):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]))
    for name, numbers in (("train", (0, 1)), ("val", (2, 3)), ("manifest", (0, 3))):
        (tmp_path / f"{name}.csv").write_text("object,label\n" + "".join(f"{n}.bin,{n}\n" for n in numbers))
    saved = tmp_path / "train.flx"
    train = fl.open(tmp_path / "train.csv")
    saved.write_bytes(train._index.to_bytes())
    assert fl.open(tmp_path / "train.csv", index=saved).digest == train.digest
    with pytest.raises(errors.InvalidError, match=r"made of .*train\.csv, and the URL is .*val\.csv"):
        fl.open(tmp_path / "val.csv", index=saved)
    whole = fl.open(tmp_path)
    saved.write_bytes(whole._index.to_bytes())
    for url in (tmp_path, tmp_path / "manifest.csv"):
        assert fl.open(url, index=saved).digest == whole.digest
    with pytest.raises(errors.InvalidError, match="made of"):
        fl.open(tmp_path.parent, index=saved)
    # The directory is its own manifest, not any list in it.
    other = tmp_path / "other.flx"
    other.write_bytes(train._index.to_bytes())
    with pytest.raises(errors.InvalidError, match=r"made of .*train\.csv"):
        fl.open(tmp_path, index=other)


def test_a_manifest_with_a_size_that_is_not_true_is_noticed(home: Any, tmp_path: Path) -> None:
    """Instead of handing out the first half of an object."""
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 1000)
    (tmp_path / "list.csv").write_text("object,size\n0.bin,1000\n1.bin,500\n2.bin,1000\n")
    data = fl.open(tmp_path / "list.csv")
    assert data[0].bytes == bytes(1000)
    with pytest.raises(errors.ChangedError, match=r"1\.bin.*has 1000 bytes, indexed were 500"):
        data[1].bytes  # noqa: B018 (it is read here)
    loader = fl.NumpyLoader(data, 3, on_error=fl.skip(max_consecutive=1))
    assert [batch for batch, _ in loader] == [[bytes(1000), bytes([2]) * 1000]]


def test_a_name_in_an_encoded_url_is_decoded(home: Any, tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(b"0")
    (tmp_path / "a b+c.csv").write_text("object\n0.bin\n")
    data = fl.open(f"file://{tmp_path}/a%20b%2Bc.csv")
    assert data[0].bytes == b"0"
    (tmp_path / "a b.flx").write_bytes(data._index.to_bytes())
    for index in (tmp_path / "a b.flx", f"file://{tmp_path}/a%20b.flx"):
        assert fl.open(tmp_path / "a b+c.csv", index=index).digest == data.digest


@pytest.mark.parametrize("form", ["path", "url"])
def test_a_percent_sign_in_a_name_is_one(home: Any, tmp_path: Path, form: str) -> None:
    keys = ["c d/1%20.bin", "c%20d/1 .bin", "c%20d/100%.bin"]
    for directory in ("x y", "x%20y"):
        for key in keys:
            path = tmp_path / directory / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{directory}/{key}")
    for directory in ("x y", "x%20y"):
        path = tmp_path / directory
        data = fl.open(path if form == "path" else path.as_uri())
        assert [(data[number].key, data[number].bytes.decode()) for number in range(len(data))] == [
            (key, f"{directory}/{key}") for key in keys
        ]
        for number, key in enumerate(keys):
            # What a URL of ours names is what opens under that name.
            url = data.url_of(number)
            assert Path(unquote(url.removeprefix("file://"))) == path / key
            listed = tmp_path / "listed.csv"
            listed.write_text(f"object\n{url}\n")
            assert fl.open(listed, refresh=True)[0].bytes.decode() == f"{directory}/{key}"


def test_a_manifest_may_name_files_by_their_paths_wherever_they_are(home: Any, tmp_path: Path) -> None:
    (tmp_path / "a%20b").write_bytes(b"one")
    manifest = tmp_path / "files.csv"
    manifest.write_text(f"object\n{tmp_path}/a%20b\na%20b\n{(tmp_path / 'a%20b').as_uri()}\n")
    near = fl.open(manifest)
    assert [near[number].bytes for number in range(3)] == [b"one"] * 3
    # These have nothing in common but `/`.
    manifest.write_text(f"object\n{tmp_path}/a%20b\n/etc/passwd\n")
    far = fl.open(manifest, refresh=True)
    assert [far[number].bytes for number in range(2)] == [b"one", Path("/etc/passwd").read_bytes()]
    assert far.url_of(1) == "file:///etc/passwd"


def test_an_index_that_was_written_again_is_read_again(home: Any, tmp_path: Path) -> None:
    """By the agent that has the old one, too."""
    place, saved = tmp_path / "data", tmp_path / "saved.flx"
    place.mkdir()
    for count in (6, 7):
        for number in range(count):
            (place / f"{number}.bin").write_bytes(b"x")
        saved.write_bytes(fl.open(place, refresh=True)._index.to_bytes())
        opened = [fl.open(place, index=saved) for _ in range(2)]
        assert [len(data) for data in opened] == [count, count]
        assert len({data.source.opened().number for data in opened}) == 1, "what didn't change is opened once"


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": None},
        {"url": b"/tmp"},
        {"url": "https://host/list.csv?signature=1"},
        {"index": 3},
        {"cache_dir": 3},
        {"extensions": None},
        {"extensions": "bin"},
        {"extensions": [3]},
        {"storage_options": "x"},
        {"storage_options": {1: 2}},
        {"format": 3},
        {"refresh": "x"},
    ],
    ids=str,
)
def test_what_open_can_not_understand_is_refused_by_name(home: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidError, match="open"):
        fl.open(**{"url": "s3://data/train", **wrong})


def test_parts_and_settings_that_can_not_be_are_refused_by_name(data: Any) -> None:
    calls: list[tuple[str, Any]] = [
        ("split", lambda: data.split([0.5, 0.5])),
        ("split", lambda: data.split({"a": "x"})),
        ("split.*seed", lambda: data.split({"a": 0.5}, seed=-1)),
        ("filter", lambda: data.filter(3)),
        ("select", lambda: data.select([[1], [2, 3]])),
        ("disk", lambda: fl.Cache(disk=3)),  # type: ignore[arg-type] # which is the point
        ("disk", lambda: fl.Cache(disk=[3])),  # type: ignore[list-item] # which is the point
        ("metrics_log", lambda: fl.Tuning(metrics_log=3)),  # type: ignore[arg-type] # which is the point
        ("shard", lambda: fl.NumpyLoader(data, 4, shard=3)),  # type: ignore[arg-type] # which is the point
    ]
    for name, call in calls:
        with pytest.raises(errors.InvalidError, match=name):
            call()


def test_numbers_of_numpy_are_numbers(data: Any) -> None:
    cache = fl.Cache(ram=np.int64(32 << 20))
    tuning = fl.Tuning(concurrency=np.int64(4), stall_s=np.float32(4))  # type: ignore[arg-type] # a number all the same
    loader = fl.NumpyLoader(data, 8, shard=np.array([0, 2]), cache=cache, tuning=tuning)  # type: ignore[arg-type] # two numbers
    assert len(list(loader)) == len(loader)
    assert len(data.split({"some": np.float32(0.5)}, seed=np.int64(3))["some"]) == round(COUNT / 2)


def test_progress_is_told(home: Any) -> None:
    told = []
    fl.open("s3://data/train", progress=lambda *at: told.append(at))
    assert told
    assert all(isinstance(step, str) for step, *_ in told)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ({"url": "s3://data/nothing-here"}, FileNotFoundError, "nothing-here"),
        ({"url": "s3://no-such-bucket/x"}, FileNotFoundError, "no-such-bucket"),
        ({"url": "s4://data/train"}, ValueError, "s4"),
        ({"url": "s3://data/train", "format": "papyrus"}, ValueError, "papyrus"),
        ({"url": "s3://data/train", "storage_options": {"enpoint_url": "x"}}, ValueError, "endpoint_url"),
        ({"url": "/no/such/directory"}, FileNotFoundError, "/no/such/directory"),
        ({"url": "s3://"}, ValueError, "names no bucket"),
        ({"url": "s3://data/train/cat/00000.bin"}, FileNotFoundError, "name its directory"),
    ],
)
def test_what_cannot_be_opened_is_named(home: Any, call: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        fl.open(**call)
    assert isinstance(caught.value, fl.ForeloadError)


def test_a_directory_works_like_a_bucket(home: Any, tmp_path: Path) -> None:
    for name in ("a/1.x", "b/2.x"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(name.encode())
    data = fl.open(tmp_path)
    assert data.classes == ["a", "b"]
    assert [item.bytes for item in data] == [b"a/1.x", b"b/2.x"]


def test_wrong_keys_are_denied_and_a_provider_is_asked(home: Any, bucket: Any) -> None:
    wrong = {"access_key_id": "wrong", "secret_access_key": "wrong"}
    with pytest.raises(PermissionError):
        fl.open("s3://data/train", storage_options=wrong, refresh=True)
    asked = []

    def provider() -> dict[str, Any]:
        asked.append(1)
        return {"access_key_id": bucket.access_key, "secret_access_key": bucket.secret_key, "expires_at": 0}

    data = fl.open("s3://data/train", credential_provider=provider, refresh=True)
    assert data[0].bytes == content(number_of(data.key(0)))
    # They have expired from the beginning: each call asks anew.
    before = len(asked)
    data.read(1)
    assert len(asked) > before


def test_a_provider_that_fails_says_so(home: Any) -> None:
    with pytest.raises(errors.DeniedError, match="no luck"):
        fl.open(
            "s3://data/train",
            credential_provider=lambda: {}["no luck"],
        )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "answered with None"),
        ([1], "dict"),
        ({"key": "a", "secret": "b", "expires_at": "soon"}, "'soon'"),
        ({"access_key_id": "a"}, "both"),
    ],
)
def test_a_provider_that_answers_something_else_is_refused(home: Any, answer: Any, words: str) -> None:
    with pytest.raises(errors.InvalidError, match=words):
        fl.open("s3://data/train", credential_provider=lambda: answer)


def test_samples_are_whole_numbers_and_parts_are_not_empty(data: Any) -> None:
    with pytest.raises(errors.InvalidError, match=r"1\.5"):
        data[1.5]
    assert data[np.int64(1)].sample == 1
    with pytest.raises(errors.InvalidError, match="'val'"):
        data.split({"train": 0.9, "val": 0.0001})
    with pytest.raises(errors.InvalidError, match="nan"):
        data.split({"train": 0.5, "val": float("nan")})


@pytest.mark.parametrize(
    "wrong",
    [{"position": -1}, {"position": None}, {"position": "1"}, {"epoch": 2**70}, {"order": 3}, {"sequence": ...}],
)
def test_a_damaged_state_is_refused_by_name(data: Any, wrong: dict[str, Any]) -> None:
    loader = fl.NumpyLoader(data, 16)
    for cut in (False, True):
        state = {**loader.state_dict(), **wrong}
        if cut:
            state = {name: value for name, value in state.items() if name not in wrong}
        with pytest.raises(errors.StateError, match="state"):
            loader.load_state_dict(state)


def test_numpy_batches_are_the_plans(data: Any) -> None:
    loader = fl.NumpyLoader(data, 16, shuffle=True, seed=5)
    assert len(loader) == 13
    for epoch in range(2):
        seen = []
        for batch, (values, labels) in enumerate(loader):
            samples = loader._run.plan.batch(epoch, batch, 0)
            assert values == [content(number_of(data.key(s))) for s in samples]
            assert labels.tolist() == data.labels[samples].tolist()
            seen += samples
        assert sorted(seen) == list(range(COUNT))
    assert [tally["batches"] for tally in loader.stats()["epochs"]] == [13, 13]


def test_numpy_batches_of_arrays_are_stacked_and_states_go_on(home: Any) -> None:
    data = fl.open("s3://data/fixed")
    loader = fl.NumpyLoader(data, 32, shuffle=True, decode=lambda raw: np.frombuffer(raw, np.uint8)[:100])
    iterator = iter(loader)
    first = next(iterator)
    assert first[0].shape == (32, 100)
    state = iterator.get_state()
    rest = [values.sum() for values, _ in iterator]
    iterator.set_state(state)
    assert [values.sum() for values, _ in iterator] == rest
    assert len(rest) == len(loader) - 1


def test_numpy_arrays_of_unequal_shapes_are_a_list(data: Any) -> None:
    loader = fl.NumpyLoader(data, 32, decode=lambda raw: np.frombuffer(raw, np.uint8))
    found = [bytes(value) for values, _ in loader for value in values]
    assert found == [content(number_of(data.key(sample))) for sample in range(COUNT)]


def test_one_iterator_can_run_through_all_epochs(data: Any) -> None:
    loader = fl.NumpyLoader(data, 100, epochs=3, repeat=True)
    assert sum(len(values) for values, _ in loader) == 3 * COUNT
    over = fl.NumpyLoader(data, 100, epochs=3, repeat=True)
    over.load_state_dict(loader.state_dict())
    assert list(over) == []
    early = fl.NumpyLoader(data, 100, epochs=3, repeat=True)
    early.load_state_dict({**loader.state_dict(), "epoch": 1})
    assert len(list(early)) == len(early)


@pytest.mark.parametrize("seeds", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 2**40, 2**50)])
def test_a_samples_seed_depends_on_seed_epoch_and_sample(seeds: tuple[int, int, int]) -> None:
    from foreload._run.decode import sample_seed

    others = {(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)} - {seeds}
    assert sample_seed(*seeds) == sample_seed(*seeds)
    assert 0 <= sample_seed(*seeds) < 2**63
    assert sample_seed(*seeds) not in {sample_seed(*other) for other in others}


def test_a_metrics_log_that_cannot_be_written_is_refused(data: Any, tmp_path: Path) -> None:
    from foreload.torch import DataLoader

    for log, words in ((tmp_path, "is a directory"), (tmp_path / "no" / "log", "no directory"), ("/proc/log", "can't")):
        for make in (DataLoader, fl.NumpyLoader):
            if words != "can't" or os.geteuid():
                with pytest.raises(errors.InvalidError, match=words):
                    make(data, 8, tuning=fl.Tuning(metrics_log=log))
    fl.NumpyLoader(data, 8, tuning=fl.Tuning(metrics_log=tmp_path / "log"))


def test_a_wids_index_names_the_shards_and_their_order(home: Any, tmp_path: Path) -> None:
    for number in range(3):
        tar_shard(
            tmp_path / f"{number}.tar", {f"{number}{sample}.bin": f"{number}{sample}".encode() for sample in range(2)}
        )
    listed = [{"url": f"{number}.tar", "nsamples": 2} for number in (2, 0)]
    (tmp_path / "index.json").write_text(json.dumps({"wids_version": 1, "shardlist": listed}))
    data = fl.open(tmp_path / "index.json")
    assert [bytes(data[sample]["bin"]) for sample in range(len(data))] == [b"20", b"21", b"00", b"01"]
    (tmp_path / "other.json").write_text('{"labels": {}}')
    with pytest.raises(errors.InvalidError, match="names no shards"):
        fl.open(tmp_path / "other.json")


def test_a_sample_of_a_shard_has_webdatasets_key(home: Any, tmp_path: Path) -> None:
    members = {f"{number}/img{number}.jpg": bytes([number]) for number in range(40)}
    for shard in range(2):
        tar_shard(tmp_path / f"{shard}.tar", dict(list(members.items())[20 * shard : 20 * shard + 20]))
    data = fl.open(tmp_path)
    keys = [name.removesuffix(".jpg") for name in members]
    assert [data.key(number) for number in range(40)] == keys
    assert data[33].key == "33/img33"
    assert f"{tmp_path}/1.tar#bytes=" in data.url_of(33)
    some = data.filter(lambda key, label, length: key.endswith("7"))
    assert [some.key(number) for number in range(4)] == ["7/img7", "17/img17", "27/img27", "37/img37"]

    def decode(raw: memoryview, meta: fl.Meta) -> str:
        if meta.sample == 25:
            raise ValueError("broken")
        return meta.key

    with pytest.raises(errors.DecodeError, match=r"sample 25 \(.*/1\.tar, '25/img25'\)"):
        list(fl.NumpyLoader(data, 10, decode=decode))
