"""Checkpoints on a real NFS: a server and two clients with caches of their own, as two nodes have
them, in a kernel that runs as a program (User Mode Linux). The machine's own kernel needs no NFS,
and nothing of it is mounted, asked or changed.

usage: nfs.py CHECKPOINT_NODE
Ends with `LEFT OUT: ...` where that kernel or nfs-utils are not installed (scripts/setup.sh
--peers), or the kernel does not start.
"""

import ctypes
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PATIENCE_S = 400
LIBC = ctypes.CDLL(None, use_errno=True)
LINUX = "linux.uml"
MODULES = "/usr/lib/uml/modules/*/"
SERVED, ONE, OTHER = "/run/served", "/run/one", "/run/other"
NODE = ""


# ------------------------------------------------------------------ in the kernel, as its process 1

def check(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source, target, kind, options=""):
    os.makedirs(target, exist_ok=True)
    check(LIBC.mount(source.encode(), target.encode(), kind.encode(), 0, options.encode()), target)


def load(*names):
    """Kernel modules, with those that they need."""
    folder = glob.glob(MODULES)[0]
    with open(folder + "modules.dep", encoding="utf-8") as lines:
        needs = {path: rest.split() for path, rest in (line.split(":") for line in lines)}
    loaded = set()

    def load_one(path):
        for needed in reversed(needs[path]):
            load_one(needed)
        if path not in loaded:
            loaded.add(path)
            with open(folder + path, "rb") as module:
                check(LIBC.syscall(313, module.fileno(), b"", 0), path)  # finit_module
    for name in names:
        load_one(next(path for path in needs if path.endswith(f"/{name}.ko")))


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def serve():
    """A server of SERVED, and two clients that share no cache."""
    for folder in ("/run", "/var/lib/nfs"):
        mount("none", folder, "tmpfs")
    os.makedirs("/var/lib/nfs/v4recovery")
    for name in ("etab", "rmtab"):
        write("/var/lib/nfs/" + name, "")
    load("nfsd", "nfsv4")
    mount("nfsd", "/proc/fs/nfsd", "nfsd")
    mount("none", SERVED, "tmpfs")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # It stays in the background, and its first process ends when it can be asked.
    subprocess.run(["rpc.mountd", "--no-nfs-version", "3"], check=True)
    subprocess.run(["exportfs", "-o", "rw,sync,fsid=0,no_root_squash,insecure,no_subtree_check",
                    "127.0.0.1:" + SERVED], check=True)
    subprocess.run(["rpc.nfsd", "--no-nfs-version", "3", "--host", "127.0.0.1", "2"], check=True)
    write("/proc/fs/nfsd/v4_end_grace", "Y")  # no client was here before
    for folder in (ONE, OTHER):
        mount("127.0.0.1:/", folder, "nfs4", "vers=4.2,proto=tcp,addr=127.0.0.1,"
                                             "clientaddr=127.0.0.1,nosharecache")


def node(*words, **options):
    return subprocess.run([NODE, *words], capture_output=True, text=True, check=False, **options)


class Checkpoints(unittest.TestCase):
    def setUp(self):
        self.name = self.id().rpartition(".")[2]

    def assert_newest(self, mount_point, expected):
        found = node("newest", f"{mount_point}/{self.name}")
        self.assertEqual(found.stdout, expected + "\n", found.stderr)

    def publish(self, mount_point, first, last, seed):
        done = node("publish", f"{mount_point}/{self.name}", str(first), str(last), str(seed))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_one_node_published_another_finds_at_once(self):
        # The other one has looked before, and keeps names and attributes for a while.
        for step in range(1, 11):
            self.publish(ONE, step, step, step)
            self.assert_newest(OTHER, f"step={step} seed={step}")

    def test_what_was_published_is_with_the_server(self):
        self.publish(ONE, 1, 3, 7)
        self.assert_newest(SERVED, "step=3 seed=7")

    def test_nodes_take_turns(self):
        for step in range(1, 7):
            writer, reader = (ONE, OTHER) if step % 2 else (OTHER, ONE)
            self.publish(writer, step, step, step)
            self.assert_newest(reader, f"step={step} seed={step}")
            self.assert_newest(writer, f"step={step} seed={step}")

    def test_a_checkpoint_that_is_replaced_is_the_old_or_the_new_one(self):
        for seed in range(1, 7):
            self.publish(ONE, 5, 5, seed)
            self.assert_newest(OTHER, f"step=5 seed={seed}")

    def test_a_reader_beside_a_writer_never_finds_half_of_one(self):
        self.publish(ONE, 1, 1, 1)
        self.assert_newest(OTHER, "step=1 seed=1")
        with subprocess.Popen([NODE, "publish", f"{ONE}/{self.name}", "2", "40", "2"],
                              stdout=subprocess.DEVNULL) as writer:
            newest = 1
            while writer.poll() is None:
                found = node("newest", f"{OTHER}/{self.name}")
                step = re.fullmatch(r"step=(\d+) seed=[12]\n", found.stdout)
                self.assertTrue(step, found.stdout + found.stderr)
                self.assertGreaterEqual(int(step[1]), newest)
                newest = int(step[1])
            self.assertEqual(writer.returncode, 0)
        self.assert_newest(OTHER, "step=40 seed=2")

    def test_a_killed_writer_leaves_whole_checkpoints_and_another_node_cleans_up(self):
        with subprocess.Popen([NODE, "publish", f"{ONE}/{self.name}", "1", "1000000", "3"],
                              stdout=subprocess.PIPE, text=True) as writer:
            while "published 7" not in writer.stdout.readline():
                pass
            writer.kill()
            told = [int(line.split()[1]) for line in writer.stdout]
        found = node("newest", f"{OTHER}/{self.name}")
        step = int(re.fullmatch(r"step=(\d+) seed=3\n", found.stdout)[1])
        self.assertGreaterEqual(step, max(told, default=7))
        self.assertEqual(node("clean", f"{OTHER}/{self.name}").returncode, 0)
        self.publish(OTHER, step + 1, step + 1, 4)
        self.assert_newest(ONE, f"step={step + 1} seed=4")
        left = [name for name in os.listdir(f"{SERVED}/{self.name}")
                if not re.fullmatch(r"step-\d{12}", name)]
        self.assertEqual(left, [])


def run_inside():
    """The output of this process goes to the console; its last line reports its end."""
    os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
    try:
        mount("proc", "/proc", "proc")
        serve()
        print("SERVING", flush=True)
        tests = unittest.defaultTestLoader.loadTestsFromTestCase(Checkpoints)
        result = unittest.TextTestRunner(sys.stdout, verbosity=2).run(tests)
        print("ENDED", "well" if result.wasSuccessful() else "badly", flush=True)
    except (OSError, subprocess.CalledProcessError, StopIteration, IndexError) as error:
        print("FAILED", error, flush=True)
    LIBC.reboot(0x4321fedc)  # power off


# ------------------------------------------------------------------------------------------ outside

def missing():
    """Why there can be no such kernel here; empty if there may be."""
    if platform.machine() != "x86_64":
        return "User Mode Linux runs on x86-64 only"
    for program in (LINUX, "rpc.mountd", "rpc.nfsd", "exportfs"):
        if shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin") is None:
            return f"there is no {program}; scripts/setup.sh --peers installs it"
    return "" if glob.glob(MODULES) else "there are no modules for " + LINUX


def main():
    why = missing()
    said = ""
    if not why:
        with tempfile.TemporaryDirectory(prefix="ddprun-nfs-") as folder:
            # The file system is this machine's, and cannot be written.
            kernel = subprocess.run(
                [LINUX, "mem=512M", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", "panic=-1",
                 "con=null", "con0=null,fd:1", "uml_dir=" + folder, "init=" + sys.executable, "--",
                 "-B", os.path.abspath(__file__), "--inside", os.path.abspath(sys.argv[1])],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", timeout=PATIENCE_S, check=False,
                env={**os.environ, "TMPDIR": folder})
            said = kernel.stdout
        print(said)
        if "SERVING" not in said and "FAILED" not in said:
            why = "User Mode Linux does not start here, see above"
    if why:
        print("LEFT OUT: checkpoints on NFS:", why)
        return 0
    return 0 if "ENDED well" in said else 1


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        NODE = sys.argv[2]
        run_inside()
    else:
        sys.exit(main())
