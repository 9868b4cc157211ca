"""`python -m ddprun …`, `ddprun-torchrun …`, `ddprun-launch …`: the program that pip installed with
this package, in place of this process."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn


def program() -> str | None:
    """The program ddprun of this package: where pip put it, else `bin` beside the package's folder
    (`pip install --target`), else the one of PATH."""
    try:
        files = metadata.files("ddprun") or []
    except metadata.PackageNotFoundError:
        files = []
    places = [Path(str(file.locate())) for file in files if file.parts[-2:] == ("bin", "ddprun")]
    places.append(Path(os.path.abspath(__file__)).parent.parent / "bin" / "ddprun")
    for place in places:
        if os.access(place, os.X_OK):
            return os.path.abspath(place)
    return shutil.which("ddprun")


def execute(name: str) -> NoReturn:
    """Becomes the program, with `name` as its own; the scripts run under this Python."""
    path = program()
    if path is None:
        sys.exit(f"{name}: the program ddprun is neither beside the Python package in "
                 f"{os.path.dirname(__file__)} nor in PATH: install ddprun's wheel, .deb or "
                 "tarball, or put the folder that has ddprun into PATH")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(path, [name, *sys.argv[1:]])


def main() -> NoReturn:
    execute("ddprun")


def launch() -> NoReturn:
    execute("ddprun-launch")


if __name__ == "__main__":
    main()
