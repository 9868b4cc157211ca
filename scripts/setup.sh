#!/usr/bin/env bash
# Installs what building and testing ddprun needs. Only what is missing, so a second run is quick.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/setup.sh [--without-torch] [--cuda-headers] [--full] [--peers] [--fake-gpu]

Installs the missing Debian packages (with sudo when not root), then makes .venv with PyTorch,
NumPy and scikit-learn for the examples, the benchmarks and the tests that run real training, and
with the library and the type checker that the package `ddprun` is tested with, and py-spy, which
shows Python's stacks.

  --without-torch   leave .venv out; what needs PyTorch is then skipped, and says so
  --cuda-headers    also the headers of CUDA and NCCL in .venv/compile-only (212 MB are downloaded,
                    6 kept), so that what needs a GPU is compiled where there is none, and for the
                    fake GPU without LibTorch; if they cannot be had, it says so and goes on
  --fake-gpu        also a LibTorch for CUDA with its headers in .venv/fake-gpu (773 MB are
                    downloaded, 1.2 GB kept), for the tests that run it without a GPU: see
                    tests/fake_gpu. Refused where NVIDIA's driver is installed
  --full            also --cuda-headers, --fake-gpu without such a driver, the headers of the oldest
                    and of the newest LibTorch that the worker runtime is written for, with
                    those of their NCCL (631 MB, 129 kept), and what only scripts/test.sh --full
                    uses: transformers, lightning and uv in .venv, Debian's packages to judge
                    released packages and run them with
  --peers           also what tests run beside ddprun: schedulers (Slurm, MUNGE, Open MPI), an
                    NFS server with a kernel to run it in, Prometheus, Chromium and, in .venv,
                    TensorBoard, Playwright, which drives that Chromium, and axe-core, which judges
                    pages.
                    No service is started, the tests start their own
  --help            this text
TEXT
}

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

packages=(
    g++ cmake ninja-build ccache                       # build
    libboost1.81-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev
    libssl-dev libxxhash-dev libprotozero-dev libgloo-dev libsqlite3-dev libhwloc-dev
    prometheus-cpp-dev   # libraries
    catch2 clang clang-format libclang-rt-14-dev   # tests and checks
    iproute2 nftables procps git python3 python3-venv  # tools that tests and scripts use
    # Tests of several daemons. Where systemd runs, Debian starts an etcd of its own on port 2379
    # when it is installed (sudo systemctl disable --now etcd ends that). No test uses it: they
    # start theirs on free ports of 127.0.0.1, with folders of their own.
    etcd-server etcd-client
)
python_packages=(
    torch==2.13.0 numpy safetensors scikit-learn
    accelerate==1.15.0 mypy==2.4.1   # what the package `ddprun` is tested with
    py-spy==0.4.3                    # Python's stacks for ddpctl stacks
)
large_python_packages=(transformers==5.23.0 lightning==2.6.6 uv==0.13.9)
terminal_python_packages=(tqdm==4.70.1 pyte==0.8.2)   # a progress bar, and what a terminal shows
full_packages=(
    lintian systemd debootstrap buildah   # judge packages, the service; an older system; the image
    qemu-user-static                      # runs programs for arm64
)

# Headers that are compiled against and never linked with: wheels that hold them, and their sums.
cuda_header_wheels=(
    nvidia-cuda-runtime==13.0.96 7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
    nvidia-cuda-crt==13.0.88     2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
    nvidia-cuda-cccl==13.0.85    e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
    nvidia-nccl-cu13==2.29.7     edd81538446786ec3b73972543e53bb43bcaf0bfc8ef76cb679fcc390ffe136d
)
# What the fake GPU runs: LibTorch for CUDA, and the headers that this LibTorch was built with.
fake_gpu_torch_wheels=(
    torch==2.14.1                305a61f61f35f128579f299c5bd33d475f6a01c6307336139632e30856c4854d
)
fake_gpu_header_wheels=(
    "${cuda_header_wheels[@]:0:6}"
    nvidia-nccl-cu13==2.30.7     cefa7fdb9710efd0f39c5f1be1d61ff6fc9a996c451265bd7fbdcf9455ed4b50
)
# Of torch the smallest wheels, for macOS: the headers are the same.
oldest_torch_wheels=(
    torch==2.11.0                7b6a60d48062809f58595509c524b88e6ddec3ebe25833d6462eeab81e5f2ce4
    nvidia-nccl-cu13==2.28.9     e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42
)
newest_torch_wheels=(
    torch==2.15.0                e808b63d616a43b326e1a5677d45a2e5babe7a8ce27edb03ddb48e7dd9b6d663
    nvidia-nccl-cu13==2.30.7     cefa7fdb9710efd0f39c5f1be1d61ff6fc9a996c451265bd7fbdcf9455ed4b50
)

peer_packages=(
    munge slurmctld slurmd slurm-client openmpi-bin
    user-mode-linux nfs-kernel-server   # a kernel that runs as a program, and serves NFS
    prometheus                          # scrapes /metrics; its promtool checks it
    chromium fonts-dejavu-core
)
peer_python_packages=(
    tensorboard==2.21.0
    playwright==1.65.2 axe-playwright-python==0.1.8   # it downloads no browser; has axe 4.12
)

with_torch=yes
with_cuda_headers=no
is_full=no
with_peers=no
with_fake_gpu=no
for argument in "$@"; do
    case "$argument" in
        --without-torch) with_torch=no ;;
        --cuda-headers) with_cuda_headers=yes ;;
        --full) is_full=yes; with_cuda_headers=yes ;;
        --peers) with_peers=yes ;;
        --fake-gpu) with_fake_gpu=yes ;;
        --help | -h) usage; exit 0 ;;
        *)
            printf 'setup: unknown option %s; see scripts/setup.sh --help\n' "$argument" >&2
            exit 2
            ;;
    esac
done

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "installing packages needs root and there is no sudo: as root, run: $*"
    fi
}

missing_packages() {
    local installed package
    installed=$(dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' |
        sed -n 's/^installed //p')
    for package in "${packages[@]}"; do
        grep -qxF -- "$package" <<<"$installed" || printf '%s\n' "$package"
    done
}

[ "$is_full" = no ] || packages+=("${full_packages[@]}")
[ "$with_peers" = no ] || packages+=("${peer_packages[@]}")
command -v dpkg-query >/dev/null ||
    die "this is no Debian system (no dpkg-query): install by hand: ${packages[*]}"
mapfile -t missing < <(missing_packages)
if [ "${#missing[@]}" -eq 0 ]; then
    say "Debian packages: all ${#packages[@]} are installed"
else
    say "Debian packages: installing ${missing[*]}"
    # Debian starts what it installs unless this file says no.
    policy=/usr/sbin/policy-rc.d
    if [ "$with_peers" = yes ] && [ ! -e "$policy" ]; then
        trap 'as_root rm -f "$policy"' EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    as_root apt-get update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        "${missing[@]}"
fi

# Looks at the installed metadata only: importing torch would take seconds.
has_python_packages() {
    [ -x .venv/bin/python ] && .venv/bin/python - "${python_packages[@]}" <<'PYTHON'
import importlib.metadata
import sys

for wanted in sys.argv[1:]:
    name, _, version = wanted.partition("==")
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        sys.exit(1)
    if version and found.partition("+")[0] != version:
        sys.exit(1)
PYTHON
}

if [ "$is_full" = yes ]; then
    python_packages+=("${large_python_packages[@]}" "${terminal_python_packages[@]}")
elif [ "$with_torch" = yes ]; then
    say ".venv: ${large_python_packages[*]} are for scripts/test.sh --full; --full installs them"
fi
[ "$with_peers" = no ] || python_packages+=("${peer_python_packages[@]}")
if [ "$with_torch" = no ]; then
    say ".venv: left out as asked; examples and tests that run PyTorch will be skipped"
elif has_python_packages; then
    say ".venv: ${python_packages[*]} are installed"
else
    say ".venv: installing ${python_packages[*]} (a few minutes the first time)"
    [ -x .venv/bin/pip ] || python3 -m venv .venv
    .venv/bin/python -m pip install --disable-pip-version-check "${python_packages[@]}"
fi

# unpack_wheels NAME FOLDER MEMBERS PIP-OPTION... -- (REQUIREMENT SHA256)...: what lies in folders
# called MEMBERS ("include", "torch torchgen") in these wheels, of whatever platform, goes into
# .venv/FOLDER. If pip cannot get a wheel, a line says so, and set-up goes on.
unpack_wheels() {
    local name=$1 target=.venv/$2 members=$3 folder mark wanted options=()
    shift 3
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    mark=$target/${name// /-}.txt
    wanted=$*
    [ "$members" = include ] || wanted="$members: $wanted"
    if [ "$(cat "$mark" 2>/dev/null)" = "$wanted" ]; then
        say "$name: they are in $target"
        return
    fi
    say "$name: downloading the wheels that hold them"
    [ -x .venv/bin/pip ] || python3 -m venv .venv
    folder=$(mktemp -d -p .venv)
    printf '%s --hash=sha256:%s\n' "$@" >"$folder/wheels.txt"
    if .venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: "${options[@]}" --dest "$folder" \
        --requirement "$folder/wheels.txt"; then
        rm -rf "$target"/*.dist-info  # of another version
        .venv/bin/python - "$folder" "$target" "$members" <<'PYTHON'
import pathlib
import sys
import zipfile

folder, target, members = sys.argv[1:]
for wheel in pathlib.Path(folder).glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target, [member for member in archive.namelist()
                                    if set(members.split()) & set(member.split("/")[:-1])])
PYTHON
        printf '%s' "$wanted" >"$mark"
        touch .venv/pyvenv.cfg  # scripts/build.sh configures anew
    else
        say "$name: LEFT OUT: pip cannot get them; what needs them is not compiled"
    fi
    rm -rf "$folder"
}

linux_wheels=(--platform manylinux_2_18_x86_64 --platform manylinux2014_x86_64)
if [ "$with_torch" = yes ] && [ "$with_cuda_headers" = yes ]; then
    unpack_wheels cuda compile-only include "${linux_wheels[@]}" -- "${cuda_header_wheels[@]}"
fi
if [ "$with_torch" = yes ] && [ "$is_full" = yes ]; then
    options=(--python-version 3.11 --platform macosx_11_0_arm64 --platform macosx_14_0_arm64)
    unpack_wheels "LibTorch 2.11" compile-only/torch-2.11 include \
        "${options[@]}" "${linux_wheels[@]}" -- "${oldest_torch_wheels[@]}"
    unpack_wheels "LibTorch 2.15" compile-only/torch-2.15 include \
        "${options[@]}" "${linux_wheels[@]}" -- "${newest_torch_wheels[@]}"
fi
# Libraries that pretend to be NVIDIA's have no place beside NVIDIA's own.
if [ "$is_full" = yes ] && [ "$with_torch" = yes ]; then
    if scripts/has_nvidia_driver.sh; then
        say "LibTorch for CUDA: LEFT OUT: NVIDIA's driver is here, so there is no fake GPU"
    else
        with_fake_gpu=yes
    fi
fi
if [ "$with_fake_gpu" = yes ]; then
    ! scripts/has_nvidia_driver.sh || die "--fake-gpu: this machine has NVIDIA's driver: \
run scripts/test.sh --gpu on its GPU, and the fake GPU on a machine without one"
    unpack_wheels "headers of CUDA" fake-gpu include "${linux_wheels[@]}" -- \
        "${fake_gpu_header_wheels[@]}"
    # With its Python, which imports the same libraries, and finds its backends by the metadata.
    unpack_wheels "LibTorch for CUDA" fake-gpu "torch torchgen functorch \
${fake_gpu_torch_wheels[0]/==/-}.dist-info" --platform manylinux_2_28_x86_64 \
        --python-version 3.11 -- "${fake_gpu_torch_wheels[@]}"
fi
say "done"
