#!/usr/bin/env bash
# Sets up, builds and runs all tests from a bare checkout. Ends with `N passed, N failed`.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/test.sh [--full] [--without-torch]
       scripts/test.sh --gpu | --fake-gpu

Installs what is missing (scripts/setup.sh), builds `release` and runs every test; then builds
`asan` (g++, address and undefined behaviour sanitizers, no PyTorch) and runs its unit, scenario,
sim and process tests; then `fuzz` (clang), 10 seconds for each target; then runs
scripts/quickstart.sh as a user would. The last line is `N passed, N failed`; the exit code is 0
only if nothing failed. What is skipped is said aloud.

  --full            also the callbacks for transformers and lightning (scripts/setup.sh --full), a
                    ResNet on a terminal beside torchrun, all jobs of a real Slurm and mpirun,
                    checkpoints on a real NFS,
                    the packages for x86-64 and for arm64 (under an emulator, with its unit and
                    scenario tests),
                    the worker runtime on a fake GPU (scripts/setup.sh --fake-gpu), with 100 kills
                    at each place of a step in place of 4,
                    the thread sanitizer on everything, the quick tests 50 times over, 200
                    kills of the C++ training in place of 20 and 50 of a pair of networks in
                    place of 5, 100,000 steps of it in one process,
                    50 kills of workers and of machines that save in memory in place of 5,
                    10 minutes for each fuzz target, 200,000 seeds of the simulator, large ones
                    too, every planted bug found anew, and 30 minutes of watching for false
                    alarms, and of chaos
  --without-torch   set up nothing for PyTorch; tests that need it are left out, aloud
  --gpu             only what needs a GPU: builds `gpu` and runs its tests there, 20 kills of the
                    C++ training among them. Installs nothing: scripts/build.sh --help says what
                    must be there. If all pass, docs/training-on-gpus.md then says so
  --fake-gpu        the same on the fake GPU of tests/fake_gpu, on a machine without a GPU, and the
                    tests of that fake: builds `fake-gpu`. Installs nothing but what
                    scripts/setup.sh --fake-gpu does. Uses ddprun of build/release if it is there.
                    The fake's tests without LibTorch are also in every run without options
TEXT
}

say() { printf '\ntest: %s\n' "$*"; }

is_full=no
is_gpu=no
is_fake_gpu=no
with_torch=yes
setup_options=(--cuda-headers --peers)
for argument in "$@"; do
    case "$argument" in
        --full) is_full=yes; setup_options+=(--full) ;;
        --gpu) is_gpu=yes ;;
        --fake-gpu) is_fake_gpu=yes ;;
        --without-torch) with_torch=no; setup_options+=(--without-torch) ;;
        --help | -h) usage; exit 0 ;;
        *)
            printf 'test: unknown option %s; see scripts/test.sh --help\n' "$argument" >&2
            exit 2
            ;;
    esac
done

passed=0
failed=0
left_out=()
started=$SECONDS

finish() {
    printf '\n'
    for reason in "${left_out[@]}"; do printf 'test: LEFT OUT: %s\n' "$reason"; done
    printf 'test: took %s s\n' "$((SECONDS - started))"
    printf '%s passed, %s failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}

# step NAME COMMAND...: a thing that must work for the rest to make sense.
step() {
    say "$1"
    if ! "${@:2}"; then
        printf 'test: FAILED: %s\n' "$1"
        failed=$((failed + 1))
        finish
    fi
}

# suite NAME PRESET CTEST-OPTIONS...: runs tests and adds their counts.
suite() {
    local report counts
    say "$1"
    report=$PWD/build/$2/junit.xml
    rm -f "$report"
    ctest --test-dir "build/$2" --output-on-failure --no-tests=error --output-junit "$report" \
        "${@:3}"
    if ! counts=$(python3 scripts/count_tests.py "$report"); then
        printf 'test: FAILED: %s: no tests ran\n' "$1"
        failed=$((failed + 1))
        return
    fi
    local good bad skipped
    read -r good bad skipped <<<"$counts"
    printf 'test: %s: %s passed, %s failed\n' "$1" "$good" "$bad"
    passed=$((passed + good))
    failed=$((failed + bad))
    [ -z "$skipped" ] || left_out+=("$1: $skipped")
}

# check NAME COMMAND...: one more test, a program's exit code.
check() {
    say "$1"
    if "${@:2}"; then
        passed=$((passed + 1))
    else
        printf 'test: FAILED: %s\n' "$1"
        failed=$((failed + 1))
    fi
}

# record PRESET: keeps which tests on GPUs have run on what, if all have passed.
record() {
    if [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]; then
        step "record" python3 scripts/gpu_runs.py --record "build/$1/junit.xml"
    fi
}
# The report holds all that the tests said.
gpu_tests=(-L gpu --verbose --test-output-size-passed 4194304)

if [ "$is_gpu" = yes ]; then
    step "build: gpu" scripts/build.sh gpu
    suite "the worker runtime on GPUs" gpu "${gpu_tests[@]}"
    record gpu
    finish
fi

# The build has no programs: those of the release are used.
test_on_fake_gpu() {
    step "build: fake-gpu" scripts/build.sh fake-gpu "-DDDPRUN_PROGRAMS=$PWD/build/release/bin"
    suite "the worker runtime on a fake GPU" fake-gpu "${gpu_tests[@]}"
}
if [ "$is_fake_gpu" = yes ]; then
    step "set-up" scripts/setup.sh --without-torch --fake-gpu
    test_on_fake_gpu
    record fake-gpu
    finish
fi

step "set-up" scripts/setup.sh "${setup_options[@]}"
has_torch=no
if [ -x .venv/bin/torchrun ] && [ "$with_torch" = yes ]; then has_torch=yes; fi
[ "$has_torch" = yes ] || left_out+=("everything that runs PyTorch")
[ -e .venv/compile-only/cuda.txt ] ||
    left_out+=("the fake GPU, and compiling what needs a GPU: no headers of CUDA and NCCL")

step "build: release" scripts/build.sh release
export DDPRUN_SIM_SECONDS="${DDPRUN_SIM_SECONDS:-60}"
suite "unit, scenario, sim, process" release -LE "cluster|full" --parallel 2
# Two at a time: they wait most of the time, for leases and for PyTorch to be imported.
suite "cluster: real daemons on loopback" release -L cluster --parallel 2

# Leaks are found at exit, also in the small programs that tests start.
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export DDPRUN_SIM_SECONDS=10
step "build: asan" scripts/build.sh asan
# Each kill starts programs, which takes several times as long here; all kills were done above.
DDPRUN_KILLS="${DDPRUN_KILLS:-40}" \
    suite "address and undefined behaviour sanitizers (without PyTorch)" asan -LE cluster \
    --parallel 2

step "build: fuzz" scripts/build.sh fuzz
[ "$is_full" = no ] || export DDPRUN_FUZZ_SECONDS=${DDPRUN_FUZZ_SECONDS:-600}
suite "fuzz targets: their corpus, then a search" fuzz -L fuzz --parallel 2

[ "$is_full" = yes ] || left_out+=("LibTorch on the fake GPU: --full or --fake-gpu runs it")
if [ "$is_full" = yes ]; then
    sim=build/release/bin/ddprun-sim
    check "simulator: 200,000 seeds, every probe reached" "$sim" --seeds 200000 --probes
    check "simulator: 64 to 512 nodes" "$sim" --seeds 2000 --nodes-between 64:512
    check "simulator: 1,024 to 4,096 nodes" "$sim" --seeds 20 --nodes-between 1024:4096
    check "simulator: every planted bug is found anew" "$sim" --hunt 40000
    check "no false alarm in 30 minutes" scripts/bench.sh control-plane --full --only false-alarms
    check "30 minutes of chaos on 16 nodes" scripts/bench.sh control-plane --minutes 15 \
        --only chaos --only chaos-daemons
    DDPRUN_TERMINAL_EXITS=10000 \
        suite "10,000 workers end at a terminal, no byte is lost" release -R output_process
    export DDPRUN_TRAIN_KILLS=200
    DDPRUN_STORE_OPERATIONS=100000 DDPRUN_KILLS=10000 \
        suite "the worker store against PyTorch's, agent and keeper killed 10,000 times" release \
        -R "store_torch_process|keeper_process|cluster_namespaces"
    suite "the C++ training, killed 200 times" release -R cluster_train_digits
    DDPRUN_GAN_KILLS=50 \
        suite "two networks trained against each other, killed 50 times" release -R cluster_gan
    DDPRUN_SAVE_KILLS=200 \
        suite "ranks that save together, killed 200 times" release -R save_process
    DDPRUN_MEMORY_JOBS=10 \
        suite "checkpoints in memory, 50 workers and 50 machines killed" release \
        -R cluster_memory_checkpoints
    DDPRUN_RUNTIME_STEPS=100000 DDPRUN_RUNTIME_DEATHS=1000 \
        suite "the C++ runtime, 100,000 steps, 1,000 deaths" release -R runtime_process
    DDPRUN_COLLECTIVE_KILLS=72 \
        suite "1,000 kills while collectives are pending" release -R collectives_process
    DDPRUN_ZERO_KILLS=50 \
        suite "a training with a sharded optimizer, killed 50 times" release -R zero_process
    suite "large libraries in Python, each run on a terminal, jobs of Slurm and mpirun, NFS, \
a C++ training with the installed runtime" release -L full
    for version in 2.11 2.15; do
        if [ -e ".venv/compile-only/torch-$version/LibTorch-$version.txt" ]; then
            check "the runtime compiles with LibTorch $version, too" \
                scripts/build.sh release "ddprun_compiles_with_torch_${version/./_}"
        else
            left_out+=("compiling the runtime with LibTorch $version: its headers could not be had")
        fi
    done
    if scripts/has_nvidia_driver.sh; then
        left_out+=("the worker runtime on a fake GPU: NVIDIA's driver is here")
    elif [ -e .venv/fake-gpu/LibTorch-for-CUDA.txt ]; then
        DDPRUN_GPU_KILLS=100 test_on_fake_gpu
    else
        left_out+=("the worker runtime on a fake GPU: its LibTorch could not be had")
    fi
    check "a wheel made for glibc 2.28 (scripts/package.sh --wheel-only)" \
        scripts/package.sh --wheel-only
    check "what users install, made for glibc 2.28 (scripts/package.sh)" scripts/package.sh
    check "the released wheel in a clean environment" python3 -B tests/packaging/wheel_install.py \
        --wheel build/package/*manylinux_2_28_x86_64.whl
    check "the released wheel in an older system" python3 -B tests/packaging/old_root.py \
        build/package/*manylinux_2_28_x86_64.whl build/package/bullseye
    [ "$has_torch" = no ] || check "a ResNet on a terminal, the released wheel beside torchrun" \
        .venv/bin/python -B tests/cluster/resnet_terminal.py \
        build/package/*manylinux_2_28_x86_64.whl
    check "released programs in a bare root" python3 -B tests/packaging/bare_root.py \
        build/package/*-linux-x86_64.tar.gz
    if packaging/emulated.sh aarch64 true; then
        check "the same for arm64, with its unit and scenario tests" \
            scripts/package.sh --arch aarch64 --with-tests
        check "released programs for arm64 in a bare root" packaging/emulated.sh aarch64 \
            python3 -B tests/packaging/bare_root.py build/package/*-linux-aarch64.tar.gz \
            build/package/aarch64/runs-in
    else
        left_out+=("packages for arm64: nothing here runs its programs, as said above")
    fi
    check "the image" python3 -B tests/packaging/image.py build/package/*-linux-x86_64.tar.gz
    suite "the quick ones, 50 times" release -L "unit|scenario|sim" --repeat until-fail:50
    step "configure: asan with whole jobs" cmake --preset asan -DDDPRUN_WITH_CLUSTER_TESTS=ON
    step "build: asan with whole jobs" scripts/build.sh asan
    # Its library must come first, so nothing can be preloaded; signals are the tests'.
    left_out+=("cluster_watching under the address sanitizer: it needs LD_PRELOAD")
    ASAN_OPTIONS="$ASAN_OPTIONS:handle_segv=0:handle_abort=0" \
        suite "cluster under the address sanitizer" asan -L cluster -E cluster_watching
    export TSAN_OPTIONS="${TSAN_OPTIONS:-second_deadlock_stack=1:die_after_fork=0}"
    step "build: tsan" scripts/build.sh tsan
    suite "thread sanitizer" tsan
fi

if [ "$has_torch" = yes ]; then
    say "quickstart, as a user runs it"
    if scripts/quickstart.sh; then
        passed=$((passed + 1))
    else
        printf 'test: FAILED: quickstart\n'
        failed=$((failed + 1))
    fi
fi
finish
