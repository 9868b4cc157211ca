"""Says where it is in its group. With a folder as argument, which has a FIFO: rank 0 fails once,
when the others have come, and they wait to be stopped."""

import os
import pathlib
import signal
import sys

env = os.environ
print(f"place {env['RANK']} of {env['WORLD_SIZE']} restarts={env['TORCHELASTIC_RESTART_COUNT']}",
      flush=True)
folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
if folder and not (folder / "failed").exists():
    if env["RANK"] == "0":
        (folder / "fifo").open("r").close()
        (folder / "failed").touch()
        sys.exit(17)
    (folder / "fifo").open("w").close()
    signal.pause()
