r"""Foreload as a data loader of DLIO, the benchmark that MLPerf Storage runs (PyPI: dlio-benchmark 2.0).

DLIO makes the files, emulates the accelerators and measures their utilisation; only what reads is ours. From the root of a checkout:

    dlio_benchmark workload=unet3d_h100 ++hydra.run.dir=hydra ++workload.reader.data_loader_classname=bench.mlperf.dlio.ForeloadLoader \\
        ++workload.reader.data_loader_sampler=index

`++workload.reader.read_threads` threads decode what has come. The node's memory budget is Foreload's default, or `FORELOAD_RAM`. If the files lie in a bucket, copied
there after DLIO has made them, `FORELOAD_DLIO_URL` is the URL of the data folder.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from dlio_benchmark.common.enumerations import DataLoaderType, DatasetType, FormatType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader

import foreload as fl
from foreload.torch import DataLoader


class ForeloadLoader(BaseDataLoader):  # type: ignore[misc] # DLIO has no types
    """What DLIO asks for batches.

    Args:
        format_type: How its files are written: npz, npy, jpeg or png, with one sample in each.
        dataset_type: Whether they are for training.
        epoch_number: Epochs from here.

    Raises:
        ValueError: The files are written otherwise, or have several samples.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        super().__init__(format_type, dataset_type, epoch_number, DataLoaderType.PYTORCH)
        if self._args.num_samples_per_file != 1:
            raise ValueError(
                f"num_samples_per_file is {self._args.num_samples_per_file}: this plug-in reads files of one sample"
            )
        self._decode = _decoder(format_type)
        self._loader: DataLoader | None = None

    def read(self) -> None:
        """Opens the files that DLIO has made."""
        asked, is_training = self._args, self.dataset_type is DatasetType.TRAIN
        root = os.environ.get("FORELOAD_DLIO_URL") or str(Path(asked.storage_root) / asked.data_folder)
        resized, decode = asked.resized_image, self._decode
        pause_s = asked.preprocess_time

        def decoded(raw: Any, _: Any) -> Any:
            # DLIO's own readers decode, and answer with an array of one size.
            decode(raw)
            if pause_s:
                time.sleep(pause_s)
            return resized

        ram = os.environ.get("FORELOAD_RAM")
        self._loader = DataLoader(
            fl.open(f"{root}/{self.dataset_type}"),
            self.batch_size,
            shuffle=is_training and asked.sample_shuffle is not Shuffle.OFF,
            seed=asked.seed,
            drop_last=True,
            decode=decoded,
            threads=max(1, asked.read_threads),
            cache=fl.Cache(ram=ram) if ram else None,
            dp_rank=asked.my_rank,
            dp_size=asked.comm_size,
        )

    def next(self) -> Iterator[Any]:
        """The batches of an epoch."""
        super().next()
        assert self._loader is not None, "DLIO calls read() first"
        yield from self._loader
        self.epoch_number += 1

    def finalize(self) -> None:
        """DLIO calls it after each epoch; the loader stays for the next one."""


def _decoder(format_type: Any) -> Callable[[Any], Any]:
    def image(raw: Any) -> Any:
        from PIL import Image

        return np.asarray(Image.open(io.BytesIO(raw)))

    decoders: dict[Any, Callable[[Any], Any]] = {
        FormatType.NPZ: lambda raw: np.load(io.BytesIO(raw), allow_pickle=False)["x"],
        FormatType.NPY: lambda raw: np.load(io.BytesIO(raw), allow_pickle=False),
        FormatType.JPEG: image,
        FormatType.PNG: image,
    }
    if format_type not in decoders:
        raise ValueError(f"format {format_type}: this plug-in reads {', '.join(map(str, decoders))}")
    return decoders[format_type]
