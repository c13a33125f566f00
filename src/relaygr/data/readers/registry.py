"""Every format that can be read, by the name of its command under `relaygr data`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from relaygr.data.readers.csvfile import CsvReader
from relaygr.data.readers.history import GitReader
from relaygr.data.readers.interface import Reader
from relaygr.data.readers.jsonl import JsonlReader
from relaygr.data.readers.kuairand import KuaiRandReader
from relaygr.data.readers.movielens import MovieLensReader
from relaygr.data.readers.parquet import ParquetReader
from relaygr.data.readers.recbole import RecBoleReader

READERS: Mapping[str, type[Reader]] = MappingProxyType(
    {
        "csv": CsvReader,
        "movielens": MovieLensReader,
        "recbole": RecBoleReader,
        "kuairand": KuaiRandReader,
        "jsonl": JsonlReader,
        "parquet": ParquetReader,
        "from-git": GitReader,
    }
)
