"""Released programs in a root that holds the C library, themselves and /proc: what the
Dockerfile's image is.

Usage: bare_root.py TARBALL [SYSTEM], made by scripts/package.sh. Needs root, for chroot and a
mount. With the C library of the Debian system in the folder SYSTEM; for another processor under
packaging/emulated.sh.
"""

import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
IMAGE_BYTES_MAX = 30_000_000
PROGRAMS = "/usr/libexec/ddprun"


def inside(root, *command):
    os.makedirs(os.path.join(root, "proc"), exist_ok=True)
    # The mount ends with the process's own name space.
    script = 'mount -t proc proc "$1/proc" && shift && exec chroot "$@"'
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script, "-", root, root, *command],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL, check=False, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
    return done.stdout


def size_of(root):
    return sum(os.lstat(os.path.join(folder, name)).st_size
               for folder, _, names in os.walk(root) for name in names)


def main():
    if os.geteuid() != 0:
        print("LEFT OUT: chroot needs root")
        return 0
    with tempfile.TemporaryDirectory() as root:
        subprocess.run([os.path.join(HERE, "..", "..", "packaging", "image_root.sh"),
                        os.path.abspath(sys.argv[1]), root,
                        *map(os.path.abspath, sys.argv[2:])], check=True)
        size = size_of(root)
        print(f"image: {size} bytes")
        assert size <= IMAGE_BYTES_MAX
        assert "--listen" in inside(root, PROGRAMS + "/ddprun-rendezvous", "--help")
        text = inside(root, PROGRAMS + "/ddprun", "--nproc-per-node", "2", "--prefix", "always",
                      "--log-dir", "/tmp/logs", PROGRAMS + "/ddprun", "--version")
        for rank in range(2):
            assert f"{rank}]" in text, text
    print("bare root: two workers ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
