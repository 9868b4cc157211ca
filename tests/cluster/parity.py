"""The same worker under torchrun and under ddprun, with the same flags: what does it see?

Everything that a worker, or a user who reads logs, exit code and console, can see is compared.
ALLOWED names what may differ and why; the document repeats it. A difference that is not named
fails, and so does a name for which no difference was seen.

Every run has pipes for the launcher's stdout and stderr. Those in CONSOLE_RUNS, or all of them, are
run again with both on a terminal and with both in one pipe.

usage: parity.py BIN_DIR DOCUMENT [--all-consoles | NAME...]
with a Python that has torch; without names what is quick.
"""

import concurrent.futures
import dataclasses
import fcntl
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from dataclasses import dataclass, field

from user import FOREIGN

PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "workers", "parity_probe.py")
PATIENCE_SECONDS = 120


@dataclass
class Run:
    """One command line, given to both launchers."""

    name: str
    flags: list
    variables: dict = field(default_factory=dict)
    program: list = field(default_factory=lambda: ["probe.py", "--lr", "0.1"])
    nodes: int = 1
    legacy: bool = False
    prepare: object = None  # called in the launcher's process before it is executed
    stdin: str = ""
    console: str = "pipes"  # or "terminal", "2>&1"
    refusal: str = ""  # ddprun's, where torchrun starts workers


def odd_state():
    """Sets process attributes that a shell, nohup or a batch system may have set."""
    os.umask(0o077)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 4096))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(3)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.dup2(1, 9)  # inherited by the launcher, and by no worker


# Slurm sets these variables for a task of `srun -N2`; a machine is called `here`.
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "{node}",
        "SLURM_STEP_NODELIST": "here,there", "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURMD_NODENAME": "here"}
STATIC = ["--rdzv-backend", "static", "--master-addr", "127.0.0.1", "--master-port", "{port}"]
TWO = ["--nproc-per-node", "2"]
RUNS = [
    Run("plain", []),
    Run("two workers", ["--nproc_per_node=2"]),
    Run("standalone", ["--standalone", "--max-restarts", "3", *TWO]),
    Run("variables", [], {"PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "2", "PET_ROLE": "eval",
                          "PET_STANDALONE": "1", "PET_TEE": "3"}),
    Run("line over variables", ["--nproc-per-node=1", "-t0"],
        {"PET_NPROC_PER_NODE": "2", "PET_TEE": "3"}),
    Run("module", ["-m"], program=["package.probe", "--", "-x"]),
    Run("no python", ["--no-python"], program=["./probe.py", "--help"]),
    Run("run path", ["--run-path", *TWO], program=["{cwd}/probe.py", "a"]),
    Run("run path, raised", ["--run-path"], {"PARITY_EXIT": "raise"}, ["{cwd}/probe.py"]),
    Run("static", [*STATIC, *TWO]),
    Run("static endpoint", ["--rdzv-backend=static", "--rdzv-endpoint=127.0.0.1:{port}"]),
    Run("master port alone", ["--master_port", "{port}"]),
    Run("two static nodes", [*STATIC, "--nnodes=2", "--node-rank", "{node}", "--role", "pair"],
        nodes=2),
    Run("c10d", ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id", "job7",
                 "--local-addr", "127.0.0.1", "--rdzv-conf", "last_call_timeout=1"]),
    Run("redirects", ["-r", "3", *TWO]),
    Run("redirects and tee by rank", ["-r", "0:1,1:2", "-t", "1:1", *TWO]),
    Run("tee", ["--tee", "3", "--role", "trainer", *TWO]),
    Run("tee with a prefix", ["-t3", *TWO],
        {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name} $rank/${local_rank}> "}),
    Run("filtered ranks", ["--local-ranks-filter", "1", "--tee", "1", *TWO]),
    Run("duplicate filters", ["--tee=3", "--duplicate-stdout-filters=apple 1,,,nothing",
                              "--duplicate_stderr_filters", "pear,1,, err", *TWO]),
    Run("no log files", ["--log-dir", "/dev/null", "-t3"]),
    Run("virtual local rank", ["--virtual-local-rank", *TWO]),
    Run("virtual, listed", ["--virtual_local_rank", *TWO],
        {"CUDA_VISIBLE_DEVICES": "6, GPU-e7 ,5"}),
    Run("macros", TWO, program=["probe.py", "a$$b", "${local_rank}", "x$local_rank-", "$HOME", "",
                                "two words", "$local_ranks"]),
    Run("set by the user", TWO, {"OMP_NUM_THREADS": "7", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
                                 "CUDA_VISIBLE_DEVICES": "1", "RANK": "99", "LOCAL_RANK": "98"}),
    Run("a store of rank 0's, and a group made again", TWO,
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PARITY_GROUPS": "3"}),
    Run("two nodes, a store of rank 0's", ["--nnodes=2", "--rdzv-backend=c10d", *TWO,
                                           "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=j",
                                           "--local-addr=127.0.0.1"],
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PARITY_GROUPS": "2"}, nodes=2),
    Run("static, and no store of rank 0's", [*STATIC, *TWO],
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PARITY_GROUPS": "1"}),
    Run("signals", ["--signals-to-handle", "SIGTERM,SIGUSR1", "--shutdown-timeout", "5",
                    "--start-method", "fork", "--monitor-interval", "0.05"]),
    Run("odd state", [], prepare=odd_state, stdin="typed\n"),
    Run("legacy", TWO, legacy=True),
    Run("legacy module", ["-m"], program=["package.probe", "-x"], legacy=True),
    Run("legacy, use env", ["--use_env"], legacy=True),
    # torchrun knows no scheduler. One node: of several ddprun would have the place.
    Run("in a Slurm step", [], STEP | {"SLURM_STEP_NODELIST": "here", "SLURM_STEP_NUM_NODES": "1",
                                       "SLURM_STEP_TASKS_PER_NODE": "1"}),
    Run("refused: a world of one in a step of two nodes",
        ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}"], STEP,
        refusal="slurm job 7.0 has 2 nodes, but with --rdzv-endpoint .* each node would be a job "
                "of its own"),
    Run("refused: four launchers of --nnodes 2, two on each node",
        ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=j"],
        STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, nodes=2,
        refusal="--nnodes 2, but slurm job 7.0 starts 4 ddprun, 2 on this node; start one on each "
                "node: srun -N2 -n2 --ntasks-per-node=1 "),
    Run("refused: a batch script of two nodes", [],
        {"SLURM_JOB_ID": "7", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "here,there",
         "SLURM_JOB_NUM_NODES": "2", "SLURM_TASKS_PER_NODE": "1(x2)", "SLURMD_NODENAME": "here"},
        refusal="slurm job 7 has 2 nodes, and this is started on one of them only; start ddprun "
                "on each: srun -N2 -n2 "),
    Run("refused: mpirun on two machines", [],
        {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0",
         "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
        refusal="mpirun has 2 nodes, and does not tell where they can meet; add --nnodes 2 "),
    Run("fails", [], {"PARITY_EXIT": "7"}),
    Run("another Python is active", [], {"VIRTUAL_ENV": "{folder}/other", "PYTHON_EXEC": None}),
]
# Enough to see each difference; the others take a minute.
CONSOLE_RUNS = ["two workers", "redirects and tee by rank", "tee with a prefix", "fails"]


@dataclass
class Allowed:
    """A difference that is meant. `where` is matched against the place, ranks left out."""

    name: str
    where: str
    accepts: object = lambda torchrun, ddprun: True
    runs: str = ".*"
    depends_on_machine: bool = False  # so that not seeing it proves nothing
    is_seen: bool = False


def both_ports(torchrun, ddprun):
    return str(torchrun).isdigit() and str(ddprun).isdigit()


def same_behind_ranks(torchrun, ddprun):
    """The same lines, those that equal ranks wrote as one."""
    unfolded = []
    for line in ddprun:
        ranks, text = re.fullmatch(r"\[(?:\S+ )?([0-9,-]+)\] (.*)", line).groups()
        for ends in (it.split("-") for it in ranks.split(",")):
            unfolded += [text] * (int(ends[-1]) - int(ends[0]) + 1)
    return torchrun == sorted(unfolded)


ON_TERMINAL = ".*, on a terminal$"
MERGED = ".*, 2>&1$"
ALLOWED = [
    Allowed("`DDPRUN_RUN_ID`", r"environment DDPRUN_RUN_ID",
            lambda t, d: t is None and re.fullmatch("[0-9a-f]{32}", d)),
    Allowed("ddprun's own variables", r"environment DDPRUN_(?!RUN_ID$)\w+",
            lambda t, d: t is None),
    Allowed("`MASTER_ADDR`", r"environment MASTER_ADDR", lambda t, d: d == "127.0.0.1",
            "(?!static|master port|two static|c10d)"),
    Allowed("`MASTER_PORT`", r"environment MASTER_PORT", both_ports, "(?!.*static|master port)"),
    Allowed("`TORCHELASTIC_RUN_ID`", r"environment TORCHELASTIC_RUN_ID",
            lambda t, d: re.fullmatch("[0-9a-f-]{36}|none", t)
            and re.fullmatch(r"[0-9a-f]{16}|7\.0", d)),
    Allowed("`OMP_NUM_THREADS`", r"environment OMP_NUM_THREADS", lambda t, d: t == "1",
            depends_on_machine=True),  # of few cores the share is 1, too
    Allowed("parent-death signal", r"parent death signal", lambda t, d: d == 9),
    Allowed("SIGHUP under `nohup`", r"signals SIGHUP|status SigIgn", runs="odd state"),
    Allowed("cgroup", r"cgroup", lambda t, d: "/ddprun-" in d, depends_on_machine=True),
    Allowed("stdout and stderr are pipes", r"descriptors [12]", lambda t, d: d == "pipe"),
    Allowed("a terminal of its own", r"descriptors [12]",
            lambda t, d: (t, d) == ("the launcher's terminal", "another terminal"), ON_TERMINAL),
    Allowed("raw, so that a log holds what was written", r"terminal [12]",
            lambda t, d: (t, d) == ("24x80 cooked", "24x80 raw"), ON_TERMINAL),
    Allowed("the window of such a worker", r"terminal [12]",
            lambda t, d: t == "24x80 cooked" and re.fullmatch("24x7[0-9] raw", d), ON_TERMINAL),
    Allowed("several workers on a terminal", r"console .*", same_behind_ranks, ON_TERMINAL),
    Allowed("tee'd lines of several workers on a terminal", r"console out",
            lambda t, d: sorted(re.sub(r"^\[\w+\]:", "", it) for it in t)
            == sorted(re.sub(r"^\[\d\] ", "", it) for it in d), ON_TERMINAL),
    Allowed("one stream behind `2>&1`", r"log attempt_0/[01]/output\.log", lambda t, d: t is None,
            f"{MERGED}|{ON_TERMINAL}"),
    Allowed("the Python of a script", r"command",
            lambda t, d: d == ["<folder>/other/bin/python3", *t[1:]], "another Python"),
    Allowed("every worker has log files", r"log attempt_0/[01]/std(out|err)\.log",
            lambda t, d: t is None),
    Allowed("a report", r"log (report\.json|run\.json|status\.json|events\.jsonl)",
            lambda t, d: t is None),
    Allowed("exit code", r"exit code", lambda t, d: t == 1 and d == 7, "fails"),
    Allowed("a place that the line does not fit", r"exit codes|starts workers|refuses",
            lambda t, d: (t, d) in (([0], [2]), ([0, 0], [2, 2]), (True, False), (False, True)),
            "refused: "),
    Allowed("`--` behind the program", r"argv|command", lambda t, d: [it for it in d if it != "--"]
            == t, "module"),
    Allowed("a process of its own for `--run-path`", r"command|descriptors .*|leads .*|"
            r"has a controlling terminal|first of sys.path|signals .*|status .*", runs="run path"),
]


def free_port():
    """A port that no process has; the one for ddprun's rendezvous is free, too."""
    while True:
        with socket.socket() as store, socket.socket() as rendezvous:
            store.bind(("127.0.0.1", 0))
            port = store.getsockname()[1]
            try:
                rendezvous.bind(("127.0.0.1", port - 100))
            except OSError:
                continue
            return port


def environment(run, folder, python, node):
    kept = {key: value for key, value in os.environ.items()
            if not FOREIGN.match(key) and
            not re.match("RANK|WORLD|MASTER|LOCAL_|GROUP_|PYTHON", key)}
    kept.update(HOME=folder, TMPDIR=folder, LC_ALL="C.UTF-8", PYTHON_EXEC=python,
                PARITY_OUT=os.path.join(folder, "out"))
    kept.update(run.variables)
    return {key: value.replace("{folder}", folder).replace("{node}", str(node))
            for key, value in kept.items() if value is not None}


def launcher_of(run, is_torchrun, bin_dir, python):
    if is_torchrun:
        module = "torch.distributed.launch" if run.legacy else "torch.distributed.run"
        return [python, "-W", "ignore", "-m", module]
    return [os.path.join(bin_dir, "ddprun-launch" if run.legacy else "ddprun")]


class Console:
    """The terminal or the pipes to which a launcher's stdout and stderr lead."""

    def __init__(self, kind):
        self.kind = kind
        if kind == "terminal":
            self._ours, self.out = pty.openpty()
            self.err = self.out
            self.name = os.ttyname(self.out)
            fcntl.ioctl(self.out, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        else:
            self.out = subprocess.PIPE
            self.err = subprocess.STDOUT if kind == "2>&1" else subprocess.PIPE

    def prepare(self):
        """In the launcher's process: as a shell would have it on a terminal."""
        if self.kind == "terminal":
            os.setsid()
            fcntl.ioctl(1, termios.TIOCSCTTY, 0)

    def read(self, process):
        """(stdout, stderr) to their ends; "" of a stream that is in the other."""
        if self.kind != "terminal":
            out, err = process.communicate(timeout=PATIENCE_SECONDS)
            return out, err or ""
        os.close(self.out)
        deadline = time.monotonic() + PATIENCE_SECONDS
        said = b""
        while select.select([self._ours], [], [], max(0, deadline - time.monotonic()))[0]:
            try:
                said += os.read(self._ours, 65536)
            except OSError:  # no process has the other end any more
                os.close(self._ours)
                process.wait(max(0, deadline - time.monotonic()))
                return plain_text(said.decode()), ""
        raise subprocess.TimeoutExpired(process.args, PATIENCE_SECONDS, said)


def plain_text(said):
    """Without what moves the cursor and what colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", said)


def start(run, is_torchrun, bin_dir, python, folder, port, consoles):
    """Both launchers find the same folder names: theirs differ only above `cwd`."""
    os.makedirs(os.path.join(folder, "cwd", "package"))
    os.makedirs(os.path.join(folder, "out"))
    os.makedirs(os.path.join(folder, "other", "bin"))
    os.symlink(python, os.path.join(folder, "other", "bin", "python3"))
    with open(PROBE, encoding="utf-8") as file:
        text = file.read()
    for path in ("probe.py", "package/probe.py"):
        with open(os.path.join(folder, "cwd", path), "w", encoding="utf-8") as file:
            file.write(f"#!{python} -u\n{text}")
        os.chmod(os.path.join(folder, "cwd", path), 0o755)
    cwd = os.path.join(folder, "cwd")
    has_log_dir = "--log-dir" in run.flags
    words = launcher_of(run, is_torchrun, bin_dir, python)
    words += [] if has_log_dir else ["--log-dir", os.path.join(folder, "logs")]
    words += run.flags + run.program
    processes = []
    for node, console in enumerate(consoles):
        line = [word.replace("{port}", str(port)).replace("{node}", str(node))
                .replace("{cwd}", cwd) for word in words]
        with open(os.path.join(folder, "stdin"), "w", encoding="utf-8") as file:
            file.write(run.stdin)
        with open(os.path.join(folder, "stdin"), encoding="utf-8") as stdin:
            processes.append(subprocess.Popen(
                line, cwd=cwd, stdin=stdin, stdout=console.out, stderr=console.err,
                env=environment(run, folder, python, node), text=True,
                preexec_fn=prepare(run, console)))
    return processes


def prepare(run, console):
    def both():
        # This process may have been started by nohup, or in the background of a script.
        for ignored in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(ignored, signal.SIG_DFL)
        console.prepare()
        if run.prepare:
            run.prepare()
    return both


def worker_lines(text):
    """Returns the lines of workers, sorted: their order does not depend on which came first."""
    # ddprun's report quotes them: behind four blanks and a bar, or a colon where a line goes on;
    # behind how a worker ended; in the table of the ranks that failed, behind a time.
    return sorted(line for line in text.splitlines()
                  if re.search(r"(apple|pear) \d, ", line)
                  and " exited with code " not in line
                  and not re.match(r" .* exit code \d+  \d\d:\d\d:\d\d  ", line)
                  and not line.startswith(("    | ", "    : ")))


def error_of(text):
    """An error file without the time, and without those who called the script."""
    told = json.loads(text)
    extra = told["message"]["extraInfo"]
    assert extra.pop("timestamp").isdigit()
    extra["py_callstack"] = extra["py_callstack"][extra["py_callstack"].rindex("probe.py"):]
    return told


def logs(folder):
    found = {}
    root = os.path.join(folder, "logs")
    for path, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name != "by-rank"]
        for name in names:
            whole = os.path.join(path, name)
            place = "/".join(os.path.relpath(whole, root).split("/")[1:])  # <job>_<8 random>/...
            with open(whole, encoding="utf-8") as file:
                text = file.read()
            found[place] = (error_of(text) if name == "error.json"
                            else "\n".join(worker_lines(text)))
    return found


def without_folder(value, folder, terminals):
    """The launcher's own folder, run and terminal, which no two share, by a common name."""
    text = json.dumps(value).replace(folder, "<folder>")
    text = re.sub(r"<folder>/logs/[^/\"]+/", "<folder>/logs/<run>/", text)
    for name in terminals:
        text = text.replace(f'"{name}"', '"the launcher\'s terminal"')
    text = re.sub('"/dev/pts/[0-9]+"', '"another terminal"', text)
    return json.loads(text)


def is_in_order(text):
    """Whether each worker's line on stdout, which it wrote first, is before that on stderr."""
    lines = [it for it in text.splitlines()
             if re.search(r"(apple|pear) \d, ", it) and " exited with code " not in it]
    seen = [re.search(r"(apple|pear) (\d), ", it).groups() for it in lines]
    return all(seen.index(("apple", rank)) < seen.index(("pear", rank))
               for rank in {rank for _, rank in seen})


def observe(run, is_torchrun, bin_dir, python, parent, port):
    folder = tempfile.mkdtemp(dir=parent)
    consoles = [Console(run.console) for _ in range(run.nodes)]
    processes = start(run, is_torchrun, bin_dir, python, folder, port, consoles)
    said = [console.read(it) for console, it in zip(consoles, processes)]
    workers = os.listdir(os.path.join(folder, "out"))
    if run.refusal:
        return {"exit codes": [it.returncode for it in processes], "starts workers": workers != [],
                "refuses": all(re.search(run.refusal, err + out) for out, err in said)}
    seen = {"exit code": [it.returncode for it in processes][0]}
    seen["console out"] = worker_lines("".join(out for out, _ in said))
    seen["console err"] = worker_lines("".join(err for _, err in said))
    if run.console != "pipes" and not re.search(
            "-t|-r|tee|redirects|PET_TEE", " ".join(run.flags + list(run.variables))):
        seen["each worker's lines are in order"] = is_in_order("".join(out for out, _ in said))
    for place, text in logs(folder).items():
        seen[f"log {place}"] = text
    for name in sorted(workers):
        with open(os.path.join(folder, "out", name), encoding="utf-8") as file:
            for key, value in json.load(file).items():
                if isinstance(value, dict):
                    for inner, it in value.items():
                        seen[f"rank {name[0]}: {key} {inner}"] = it
                else:
                    seen[f"rank {name[0]}: {key}"] = value
    shutil.rmtree(folder)
    if not any(place.startswith("rank") for place in seen):
        raise AssertionError(f"{run.name}: no worker ran:\n" + "\n".join(err for _, err in said))
    return without_folder(seen, folder, [it.name for it in consoles if run.console == "terminal"])


def is_allowed(run, place, torchrun, ddprun):
    place = re.sub("^rank [0-9]: ", "", place)
    for allowed in ALLOWED:
        if (re.fullmatch(allowed.where, place) and re.match(allowed.runs, run.name) and
                allowed.accepts(torchrun, ddprun)):
            allowed.is_seen = True
            return True
    return False


def compare(run, torchrun, ddprun):
    wrong = []
    if run.refusal and not (torchrun["starts workers"] and ddprun["refuses"]):
        wrong.append("  torchrun starts no workers, or ddprun refuses nothing, or says another "
                     f"thing than: {run.refusal}")
    for place in sorted(torchrun.keys() | ddprun.keys()):
        theirs, ours = torchrun.get(place), ddprun.get(place)
        if theirs != ours and not is_allowed(run, place, theirs, ours):
            wrong.append(f"  {place}\n    torchrun: {theirs!r}\n    ddprun:   {ours!r}")
    return wrong


def wanted_runs(arguments):
    """Each way of giving the launcher its console."""
    is_all = arguments == ["--all-consoles"]
    runs = [] if is_all else list(RUNS)
    for kind, suffix in (("terminal", ", on a terminal"), ("2>&1", ", 2>&1")):
        runs += [dataclasses.replace(run, name=run.name + suffix, console=kind) for run in RUNS
                 if is_all or arguments or run.name in CONSOLE_RUNS]
    return [run for run in runs if is_all or not arguments or run.name in arguments]


def main():
    bin_dir, document, *arguments = sys.argv[1:]
    bin_dir = os.path.abspath(bin_dir)
    python = sys.executable
    runs = wanted_runs(arguments)
    failures = []
    with tempfile.TemporaryDirectory() as parent, \
            concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        def both(run):
            port = free_port()
            return [observe(run, it, bin_dir, python, parent, port) for it in (True, False)]
        for run, seen in zip(runs, pool.map(both, runs)):
            wrong = compare(run, *seen)
            print(f"{'differs' if wrong else 'same   '}  {run.name}", *wrong, sep="\n", flush=True)
            failures += wrong
    with open(document, encoding="utf-8") as file:
        text = file.read()
    for allowed in ALLOWED:
        if not arguments and not allowed.is_seen and not allowed.depends_on_machine:
            failures.append(f"no run differs in: {allowed.name}")
        if f"| {allowed.name} |" not in text:
            failures.append(f"{document} does not name the difference: {allowed.name}")
    print(*failures[-len(ALLOWED):], sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
