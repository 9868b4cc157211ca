#!/usr/bin/env python3
"""Stubs of the vendor libraries that LibTorch for CUDA needs.

usage: stubs.py TORCH_LIB OUT

Reads from the libraries in TORCH_LIB what they import, and writes into OUT, for each library that
is neither there nor the system's, SONAME.cpp and SONAME.map (a version script). libraries.txt lists
them. A call of a stub ends the process with its name. Stubs are weak: what the fake GPU defines in
the same library goes before.
"""

import collections
import os
import re
import subprocess
import sys

SYSTEM = re.compile(r"(lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|util|gomp)\.so|ld-linux)")
# Names whose version is no library belong to the library of the first prefix that fits.
PREFIXES = (
    ("cusparseLt", "libcusparseLt.so"), ("cudnn", "libcudnn.so"), ("nccl", "libnccl.so"),
    ("nvrtc", "libnvrtc.so"), ("cuFile", "libcufile.so"), ("nvshmem", "libnvshmem_host.so"),
    ("cupti", "libcupti.so"), ("cusolver", "libcusolver.so"), ("cublasLt", "libcublasLt.so"),
    ("cublas", "libcublas.so"), ("cusparse", "libcusparse.so"), ("cufft", "libcufft.so"),
    ("curand", "libcurand.so"), ("nvJitLink", "libnvJitLink.so"), ("__cuda", "libcudart.so"),
    ("cuda", "libcudart.so"))
DRIVER = "libcuda.so.1"
IS_OF_DRIVER = re.compile(r"cu[A-Z](?!ile)")
# Symbols that these libraries export beside the stubs.
EXPORTED = {"libcudart.so.13": "cuda*; __cuda*", "libnccl.so.2": "nccl*", DRIVER: "cu*"}

HEAD = """// Made by tests/fake_gpu/stubs.py.
#include <cstdio>
#include <cstdlib>

namespace {
[[noreturn, maybe_unused]] int refuse(const char* name) {
    (void)std::fprintf(stderr, "fake GPU: %s has only a stub of %s, which is called\\n", "SONAME",
                       name);
    std::abort();
}
}  // namespace

#define DDP_STUB(name) extern "C" __attribute__((weak)) int name() { return refuse(#name); }
"""


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def look_into(folder):
    """The libraries that those in `folder` need and that are not there, and all that they import:
    (name, version)."""
    present = {name for name in os.listdir(folder) if re.search(r"\.so(\.|$)", name)}
    needed, imports = set(), set()
    for name in present:
        path = os.path.join(folder, name)
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "-dW", path)))
        for line in output_of("nm", "-D", "--undefined-only", path).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            imports.add((symbol, version.lstrip("@")))
    missing = {name for name in needed if name not in present and not SYSTEM.match(name)}
    return missing | {DRIVER}, imports


def library_of(symbol, version, missing):
    """Returns None if the symbol is no vendor's."""
    # A version is called as the library is, or as its name begins.
    for name in sorted(missing):
        if version and (version == name or version.startswith(name.partition(".so")[0] + ".so")):
            return name
    if IS_OF_DRIVER.match(symbol):
        return DRIVER
    for prefix, library in PREFIXES:
        if symbol.startswith(prefix):
            return next((name for name in missing if name.startswith(library + ".")), None)
    return None


def version_script(soname, versions):
    """{version: names} as the linker reads it. Names without a version come last."""
    nodes = []
    for version in sorted(versions, key=lambda version: (version == "", version)):
        names = EXPORTED.get(soname) or "; ".join(sorted(versions[version]))
        # A node without a name is allowed if it is the only one.
        label = version or ("" if len(versions) == 1 else "FAKE_GPU_UNVERSIONED")
        nodes.append(label + " {" + (f" global: {names};" if names else ""))
    return " };\n".join(nodes) + " local: *; };\n"


def write(folder, name, text):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def main():
    torch_lib, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    missing, imports = look_into(torch_lib)
    stubs = {soname: collections.defaultdict(set) for soname in missing}
    for symbol, version in imports:
        soname = library_of(symbol, version, missing)
        if soname:
            stubs[soname][version].add(symbol)
    for soname, versions in stubs.items():
        if not versions:
            versions[""] = set()
        names = sorted(set().union(*versions.values()))
        write(out, soname + ".cpp",
              HEAD.replace("SONAME", soname) + "".join(f"DDP_STUB({name})\n" for name in names))
        write(out, soname + ".map", version_script(soname, versions))
    write(out, "libraries.txt", "".join(f"{soname}\n" for soname in sorted(stubs)))
    count = sum(len(names) for versions in stubs.values() for names in versions.values())
    print(f"{len(stubs)} libraries, {count} names")


if __name__ == "__main__":
    main()
