"""The released wheel in the oldest system that Debian still hands out: Debian 11, with glibc 2.31
(that of Ubuntu 20.04) and Python 3.9. All of wheel_install.py runs in it.

Usage: old_root.py WHEEL FOLDER; the system lies in FOLDER, and is made there if it does not. Needs
root and debootstrap.
"""

import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SUITE, GLIBC = "bullseye", "2.31"
IN_ROOT = """
mount -t proc proc "$1/proc"
exec chroot "$1" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root sh -ec '
    ldd --version | head -1
    exec python3 -B /wheel/wheel_install.py --wheel /wheel/*.whl'
"""


def made(folder):
    """Returns None once the system is in the folder, else the reason why there is none."""
    if os.path.exists(os.path.join(folder, "is-complete")):
        return None
    if os.geteuid() != 0:
        return "chroot needs root"
    if not shutil.which("debootstrap"):
        return "no debootstrap; scripts/setup.sh --full installs it"
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(["debootstrap", "--variant=minbase", "--include=python3-venv", SUITE,
                           folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode != 0:
        return "debootstrap " + SUITE + ": " + done.stdout.rstrip().rpartition("\n")[2]
    with open(os.path.join(folder, "is-complete"), "w", encoding="utf-8"):
        return None


def main():
    wheel, folder = map(os.path.abspath, sys.argv[1:])
    why_not = made(folder)
    if why_not:
        print(f"LEFT OUT: the wheel in Debian's {SUITE}: {why_not}")
        return 0
    inside = os.path.join(folder, "wheel")
    shutil.rmtree(inside, ignore_errors=True)
    os.mkdir(inside)
    for path in (wheel, os.path.join(HERE, "wheel_install.py")):
        shutil.copy(path, inside)
    # The mount ends with the process's own name space.
    done = subprocess.run(["unshare", "--mount", "sh", "-ec", IN_ROOT, "-", folder],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    assert GLIBC in done.stdout.partition("\n")[0], "this is not the C library that was meant"
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
