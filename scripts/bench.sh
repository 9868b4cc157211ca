#!/usr/bin/env bash
# Builds release and measures ddprun side by side with its peers. Asserts nothing, except that
# nobody is declared dead who is not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/bench.sh [launch] [--runs N] [--beside BUILD | --on-terminal] [--only start|idle|
                        crash-1|crash-2|lose-node|death|logs|tee]...
       scripts/bench.sh runtime [--runs N] [--epochs N] [--only start|speed-1|speed-2|crash|
                        crash-cold]...
       scripts/bench.sh control-plane [--runs N] [--minutes M] [--full] [--only torchrun|agents-128|
                        agents-1000|agents-4000|watchers|signal|stall-daemon|stall-leader|
                        stall-paused|stall-etcd|silence|false-alarms|chaos|chaos-daemons]...
                        [--seed S]
       scripts/bench.sh store [--runs N] [--beside BUILD] [--only connects|resolver|barrier|relay|
                        requests-1|requests-16|requests-64|memory|values|group-2|group-8|group-64|
                        relays|relay-pytorch]...
       scripts/bench.sh srun [--runs N]
       scripts/bench.sh warm [--runs N] [--epochs N] [--warm MODULES] [--only kill|replace|kill-cpp|
                        first-line|death|speed|memory]...
       scripts/bench.sh resume [--runs N] [--mebibytes N] [--folder DIR]
       scripts/bench.sh checkpoint [--runs N] [--mebibytes N]... [--ranks N]... [--folder DIR]
                        [--only save|async|hidden|load|memory]...
       scripts/bench.sh sharded [--runs N] [--mebibytes N] [--steps N] [--ranks N]...
                        [--only ddp|zero1|zero2]...
       scripts/bench.sh scale [--nodes N]... [--only job|failure|journal|adoption]...

launch   starting 8 workers, memory and wake-ups beside them, restart after a crash on one node and
         on two, loss of a node, death of workers with much memory, CPU for the logs of 8 workers:
         ddprun and the torchrun of .venv in turn. Prints a table and writes
         build/bench/launch.json.
runtime  command to first step, images a second with 1 and 2 workers, crash to first step after
         resume, with the standbys that there are by default and without (--warm off): the training
         in C++ (examples/train_digits) and the one in Python (examples/python_ddp) in turn, both
         under ddprun. Writes build/bench/runtime.json.
control-plane
         128, 1,000 and 4,000 agents in one process against one daemon: the launcher's share of a
         restart, memory and CPU of the daemon; torchrun's protocol alone with 128 nodes beside it;
         what nobody, one and 1,000 who watch 8,000 ranks cost, and how long beats wait;
         an agent killed and a cable pulled out to when the others know; how long nodes are without
         a daemon that decides after one is killed or paused, or an etcd is; false alarms in M
         minutes (2; with --full 30) on a busy machine whose network loses packets and stands still;
         M minutes of chaos on 16 nodes (seed S) with one daemon, and with three and etcds: exit
         code 1 if anything was wrong. What needs network namespaces or etcd is left out, aloud,
         where there are none. Writes build/bench/control-plane.json.
store    the worker store and PyTorch's own server in turn: 10,000 connects, also to the store on
         the daemon's port and with a slow name server; barriers of 10,000 directly, to that port
         and through relays; requests of 1, 16 and 64 clients, memory, values of 8 MiB; where the
         time of init_process_group() of 2, 8 and 64 ranks goes; the store directly and through the
         real relays of 2, 16 and 100 nodes, and of one with PyTorch's clients. Writes
         build/bench/store.json and store-relays.json.
srun     what ddprun adds to a start under Slurm: srun to a worker on each of two nodes, through
         ddprun and without it in turn, in the Slurm of the tests (scripts/setup.sh --peers).
         Writes build/bench/srun.json.
warm     ddprun with standbys, without (--warm off) and torchrun in turn, unmodified programs: a
         worker in Python and one in C++ killed to the first step after resume, once a standby waits
         for each, the same with a node that a spare replaces; images a second with standbys that
         wait; a standby's place told to the program's first line; a Python worker killed to its
         neighbour told, with the package and without; a standby's memory. Writes
         build/bench/warm.json.
resume   a checkpoint of 1 GiB of which nothing is in memory, loaded after a failure: read ahead
         because a worker has told where it is, and not. Writes build/bench/resume.json.
checkpoint
         save(), save_async() and resume() of 256 MiB and 1 GiB on 1 and 2 ranks, beside PyTorch's
         torch.save, dcp.save, dcp.async_save and their loads, in turn on one file system: how long
         the training stands still when its step follows at once and when computation hides the
         save, the time until the disk has it, the first save and the tenth, CPU for each GiB; and
         the floors, memcpy, a write past the page cache and one exchange between the ranks. With 2
         ranks also --memory-checkpoints on one node, and on two with a copy on the other one, in
         clear and through TLS: the same saves and loads through memory and through the disk in
         turn. --folder must be on a disk; by default it is below build/bench. Writes
         build/bench/checkpoint.json.
sharded  DistributedDataParallel and ShardedOptimizer beside PyTorch's DistributedDataParallel,
         ZeroRedundancyOptimizer and fully_shard in turn, on 2 and 4 ranks: samples a second and
         memory of a rank. Ends with an error if the losses differ by more than 1e-6. Writes
         build/bench/sharded.json.
scale    what a daemon decides, without its sockets: processor time for each join, beat, loss, stop,
         end and return of 100, 1,000 and 10,000 made-up nodes of 8 ranks, with messages opened and
         sealed and records encoded; the longest turn of its thread. Writes build/bench/scale.json.

--beside BUILD measures another build of ddprun in turn, in place of torchrun or PyTorch: the folder
build/release of a checkout of the commit before. --on-terminal measures ddprun on a terminal, whose
workers have terminals, in place of torchrun: `launch --on-terminal --only start --only idle`.
TEXT
}

bench=launch
case "${1:-launch}" in
    --help | -h) usage; exit 0 ;;
    launch | runtime | control-plane | store | srun | warm | resume | checkpoint | sharded | scale)
        [ $# -eq 0 ] || { bench=$1; shift; }
        ;;
    -*) ;;
    *)
        printf 'bench: no benchmark %s; there are: %s %s\n' "$1" \
            "launch, runtime, control-plane, store, srun, warm, resume, checkpoint," \
            "sharded, scale" >&2
        exit 2
        ;;
esac
programs=(ddprun ddprun-keeper ddprun-rendezvous)
case "$bench" in
    launch)
        programs+=(ddprun-preload stamp_worker)
        [ -x .venv/bin/torchrun ] ||
            printf 'bench: no .venv/bin/torchrun: run scripts/setup.sh to compare with it\n' >&2
        ;;
    srun) programs+=(stamp_worker) ;;
    resume) programs=(ddprun ddprun-keeper ddprun-readahead) ;;
    scale) programs=(daemon_scale) ;;
    runtime | warm | checkpoint | sharded)
        case "$bench" in
            checkpoint) programs+=(checkpoint_rank memory_rank ddprun-memory) ;;
            sharded) programs=(sharded_rank) ;;
            *) programs+=(train_digits) ;;
        esac
        [ -x .venv/bin/python ] || {
            printf 'bench: no .venv/bin/python: run scripts/setup.sh, which installs PyTorch\n' >&2
            exit 1
        }
        ;;
    control-plane)
        programs+=(ddpctl chaos_worker stamp_worker agent_crowd ddprun_network_proxy)
        [ -x .venv/bin/python ] ||
            printf 'bench: no .venv/bin/python: run scripts/setup.sh to compare with torchrun\n' >&2
        ;;
    store)
        programs=(store_load store_bench_server store_plain_server ddprun-rendezvous)
        [ -x .venv/bin/python ] ||
            printf 'bench: no .venv/bin/python: run scripts/setup.sh to compare with PyTorch\n' >&2
        ;;
esac
scripts/build.sh release "${programs[@]}" >&2
exec python3 "tests/bench/${bench//-/_}.py" "$@"
