"""Packs installed programs and `import ddprun` into a wheel; prints its path.

usage: wheel.py --installed PREFIX --version VERSION --platform TAG --out FOLDER
                [--licence FILE]... [--maintainer WHO]

PREFIX is what `cmake --install --component programs` made. The programs go where pip puts
executables, so that bin/ddprun is the program itself with its helpers beside it. The same input
gives the same bytes.
"""

import argparse
import base64
import hashlib
import os
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "worker_runtime", "python", "ddprun")
LIBRARY = "ddprun-checkpoint.so"
WHEN = (2020, 1, 1, 0, 0, 0)


def read(path):
    with open(path, "rb") as file:
        return file.read()


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, content, is_program=False):
        entry = zipfile.ZipInfo(name, WHEN)
        entry.external_attr = (0o100755 if is_program else 0o100644) << 16
        self.zip.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}\n")

    def close(self, record_name):
        self.record.append(f"{record_name},,\n")
        entry = zipfile.ZipInfo(record_name, WHEN)
        entry.external_attr = 0o100644 << 16
        self.zip.writestr(entry, "".join(self.record), zipfile.ZIP_DEFLATED, 9)
        self.zip.close()


def main():
    parser = argparse.ArgumentParser()
    for name in ("installed", "version", "platform", "out"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("--licence", action="append", default=[])
    parser.add_argument("--maintainer")
    options = parser.parse_args()
    name = "ddprun-" + options.version
    tag = "py3-none-" + options.platform
    path = os.path.join(options.out, f"{name}-{tag}.whl")
    wheel = Wheel(path)
    for module in sorted(os.listdir(PACKAGE)):
        if module.endswith((".py", ".typed")):
            wheel.add("ddprun/" + module, read(os.path.join(PACKAGE, module)))
    # A worker's Python runs these files first; ddprun looks for them in ../share from where it is.
    start = os.path.join(options.installed, "share", "ddprun", "python")
    for folder, _, files in sorted(os.walk(start)):
        for file in sorted(files):
            path_in = os.path.relpath(os.path.join(folder, file), options.installed)
            wheel.add(f"{name}.data/data/{path_in}", read(os.path.join(folder, file)))
    programs = os.path.join(options.installed, "bin")
    for program in sorted(os.listdir(programs)):
        # A wheel holds no links: ddprun-launch is an entry point.
        if not os.path.islink(os.path.join(programs, program)):
            # The package loads its library from beside itself.
            place = "ddprun/" if program == LIBRARY else f"{name}.data/scripts/"
            wheel.add(place + program, read(os.path.join(programs, program)), True)
    info = name + ".dist-info/"
    metadata = read(os.path.join(HERE, "wheel", "METADATA")).decode()
    metadata = metadata.replace("@VERSION@", options.version)
    if options.maintainer:
        metadata = metadata.replace("Keywords:",
                                    f"Maintainer-email: {options.maintainer}\nKeywords:")
    wheel.add(info + "METADATA", metadata.encode())
    wheel.add(info + "entry_points.txt", read(os.path.join(HERE, "wheel", "entry_points.txt")))
    wheel.add(info + "WHEEL", ("Wheel-Version: 1.0\nGenerator: ddprun\nRoot-Is-Purelib: false\n"
                               f"Tag: {tag}\n").encode())
    for licence in options.licence:
        wheel.add(info + "licenses/" + os.path.basename(licence), read(licence))
    wheel.close(info + "RECORD")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
