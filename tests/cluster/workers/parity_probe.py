"""A worker that writes down all it can see, for tests/cluster/parity.py.

It leaves $PARITY_OUT/<rank>.json, says a line on stdout and one on stderr, and exits with
$PARITY_EXIT, or by an exception where that is "raise". With $PARITY_GROUPS it makes its process
group, and destroys it, so often.
"""

import ctypes
import json
import os
import resource
import signal
import stat
import sys
import termios

PR_GET_PDEATHSIG = 2


def kind_of(descriptor):
    """Returns the kind of a descriptor's target, without the parts that differ from run to run."""
    mode = os.fstat(descriptor).st_mode
    target = os.readlink(f"/proc/self/fd/{descriptor}")
    if stat.S_ISREG(mode):
        return "file " + os.path.basename(target)
    if stat.S_ISCHR(mode):
        return target
    return target.split(":")[0]


def descriptors():
    seen = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            seen[name] = kind_of(int(name))
        except OSError:
            pass  # The folder's own, closed by now.
    return seen


def terminal(descriptor):
    if not os.isatty(descriptor):
        return "none"
    size = os.get_terminal_size(descriptor)
    is_cooked = termios.tcgetattr(descriptor)[1] & termios.OPOST
    return f"{size.lines}x{size.columns} {'cooked' if is_cooked else 'raw'}"


def is_there(path):
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False


def status(*keys):
    with open("/proc/self/status", encoding="utf-8") as file:
        lines = dict(line.split(":", 1) for line in file)
    return {key: lines[key].strip() for key in keys if key in lines}


def parent_death_signal():
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    return number.value


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def look():
    opened = descriptors()
    with open("/proc/self/environ", "rb") as file:
        at_exec = file.read().split(b"\0")[:-1]
    return {
        "argv": sys.argv,
        "command": read("/proc/self/cmdline").split("\0")[:-1],
        "name": __name__,
        "first of sys.path": sys.path[0],
        "environment": dict(os.environ),
        "variables twice": len(at_exec) - len({entry.split(b"=")[0] for entry in at_exec}),
        "folder": os.getcwd(),
        "descriptors": opened,
        "terminal 0": terminal(0),
        "terminal 1": terminal(1),
        "terminal 2": terminal(2),
        "has a controlling terminal": is_there("/dev/tty"),
        "both streams are one": os.path.sameopenfile(1, 2),
        "signals": {
            key: signal.getsignal(number) in (signal.SIG_DFL, signal.SIG_IGN) and int(
                signal.getsignal(number)) for key, number in
            [(it.name, it) for it in signal.Signals]
        },
        "status": status("SigBlk", "SigIgn", "SigCgt", "ShdPnd", "Umask", "NoNewPrivs", "Seccomp",
                         "CapEff", "CapInh", "Groups", "Cpus_allowed_list"),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource)
                   if name.startswith("RLIMIT_")},
        "leads its group": os.getpgid(0) == os.getpid(),
        "leads its session": os.getsid(0) == os.getpid(),
        "niceness": os.nice(0),
        "oom_score_adj": read("/proc/self/oom_score_adj"),
        "cgroup": read("/proc/self/cgroup"),
        "parent death signal": parent_death_signal(),
        "scheduler": os.sched_getscheduler(0),
    }


def sums_of_groups(count):
    """Returns the sum that each group of torch.distributed computed, one after the other."""
    import torch
    import torch.distributed as dist

    sums = []
    for group in range(count):
        dist.init_process_group("gloo")
        word = torch.tensor([dist.get_rank() + 1])
        dist.all_reduce(word)
        sums.append(word.item())
        dist.barrier()
        dist.destroy_process_group()
        over = os.path.join(os.environ["TMPDIR"], f"group-{group}-is-over")
        if os.environ["RANK"] == "0":
            open(over, "x").close()
        while not os.path.exists(over):  # Else it may meet rank 0's last store, which goes.
            os.sched_yield()
    return sums


def main():
    seen = look()
    rank = seen["environment"]["RANK"]
    if "PARITY_GROUPS" in os.environ:
        seen["sums of groups"] = sums_of_groups(int(os.environ["PARITY_GROUPS"]))
    with open(os.path.join(os.environ["PARITY_OUT"], f"{rank}.json"), "w",
              encoding="utf-8") as file:
        json.dump(seen, file)
    # Each in one piece, so that lines of two workers do not mix if no launcher keeps them apart.
    os.write(1, f"apple {rank}, out\n".encode())
    os.write(2, f"pear {rank}, err\n".encode())
    how = os.environ.get("PARITY_EXIT", "0")
    if how == "raise":
        raise KeyError("the cause")
    sys.exit(int(how))


if __name__ == "__main__":
    main()
