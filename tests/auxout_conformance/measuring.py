"""Measures which lines of a target's folder run, inside the process that runs it."""

from __future__ import annotations

from pathlib import Path

from coverage import Coverage


class Measure:
    """The lines of a folder's files that ran since this was made; it must be made before the folder is imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._coverage = Coverage(
            data_file=None, config_file=False, include=[str(self._folder / "*")], messages=False
        )
        self._coverage.set_option("run:disable_warnings", ["no-data-collected", "trace-changed"])
        self._coverage.start()

    def lines(self) -> dict[str, list[int]]:
        """By the file's name in the folder."""
        self._coverage.stop()
        data = self._coverage.get_data()
        found = {
            Path(name).relative_to(self._folder).as_posix(): sorted(data.lines(name) or ())
            for name in data.measured_files()
        }
        self._coverage.start()
        return found
