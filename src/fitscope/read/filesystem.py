"""A store seen as an Arrow file system, so that Arrow and DuckDB scan the parts of a run wherever it lives.

Read-only, and whole objects only: parts are small. A local run does without it.
"""

from __future__ import annotations

from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import fs

from fitscope.store._base import Objects


def filesystem(objects: Objects) -> fs.FileSystem:
    """The Arrow file system over `objects`; paths are keys."""
    return fs.PyFileSystem(_Handler(objects))


class _Handler(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow is untyped
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and other._objects is self._objects

    def __hash__(self) -> int:
        return id(self._objects)

    def get_type_name(self) -> str:
        return "fitscope"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> Any:
        try:
            return fs.FileInfo(path, fs.FileType.File, size=self._objects.size(path))
        except FileNotFoundError:
            return fs.FileInfo(path, fs.FileType.NotFound)

    def open_input_file(self, path: str) -> Any:
        return pa.PythonFile(pa.BufferReader(self._objects.get(path)), mode="r")

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("a run is only read through this file system")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = (
        _refuse
    )
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
