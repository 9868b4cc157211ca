"""Nodes with a network of their own on this machine, which can be cut and loses packets.

A process that imports this runs in its own network namespace (see inside()), the switch.
Nothing has a name outside it, so nothing is left when the last process has gone.
"""

import fcntl
import os
import socket
import struct
import subprocess
import sys

BRIDGE = "ddprun-switch"
SWITCH = "10.77.0.1"
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h
INSIDE = "DDPRUN_BENCH_INSIDE"


def why_not():
    """Why there can be no such network here; empty if it can."""
    for arguments in ([], ["--user", "--map-root-user"]):
        probe = ["unshare", *arguments, "--net", "--mount", "sh", "-ec",
                 f"ip link add {BRIDGE} type bridge; nft add table inet probe"]
        done = subprocess.run(probe, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            os.environ[INSIDE] = " ".join(arguments)
            return ""
    return f"no network namespace of our own: {done.stderr.strip() or 'not allowed'}"


def inside(arguments):
    """This program again, with `arguments`, in a network of its own; its exit code. An empty
    /var/tmp is part of it, so that daemons there know nothing of other runs."""
    command = ["unshare", *os.environ[INSIDE].split(), "--net", "--mount", "sh", "-ec",
               'mount -t tmpfs -o mode=1777 none /var/tmp; exec "$@"', "sh", sys.executable,
               *arguments]
    return subprocess.run(command, check=False).returncode


def run(*words):
    subprocess.run(words, check=True)


class Network:
    """A context: a switch, here, and `count` nodes."""

    def __init__(self, count):
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "address", "add", f"{SWITCH}/20", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        self.holders = []
        for node in range(count):
            # It lives as long as the pipe that it reads, and its namespace with it.
            holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo here; exec cat"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            holder.stdout.readline()
            self.holders.append(holder)
            run("ip", "link", "add", f"port{node}", "type", "veth", "peer", "name", "eth0",
                "netns", str(holder.pid))
            run("ip", "link", "set", f"port{node}", "master", BRIDGE, "up")
            for words in (["lo", "up"], ["eth0", "up"]):
                run(*self.enter(node), "ip", "link", "set", *words)
            run(*self.enter(node), "ip", "address", "add",
                f"10.77.{(node + 2) // 256}.{(node + 2) % 256}/20", "dev", "eth0")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for holder in self.holders:
            holder.stdin.close()
            holder.wait()
        run("ip", "link", "delete", BRIDGE)

    def enter(self, node):
        """Returns the words that stand before a command that runs on `node`."""
        return ["nsenter", f"--net=/proc/{self.holders[node].pid}/ns/net", "--"]

    def cut(self, node):
        """At once: starting a program for it would be part of what is measured."""
        name = f"port{node}".encode()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sH14x", name, 0))
            flags = struct.unpack("16sH14x", request)[1]
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", name, flags & ~IFF_UP))

    def heal(self, node):
        run("ip", "link", "set", f"port{node}", "up")

    def lose_one_in(self, count):
        """The switch drops one of `count` TCP packets that arrive at it or leave it."""
        run("nft", "add", "table", "inet", "loss")
        for hook, device in (("input", "iifname"), ("output", "oifname")):
            run("nft", "add", "chain", "inet", "loss", hook,
                f"{{ type filter hook {hook} priority 0; }}")
            run("nft", "add", "rule", "inet", "loss", hook, device, BRIDGE, "meta", "l4proto",
                "tcp", "numgen", "random", "mod", str(count), "==", "0", "counter", "drop")

    def lose_none(self):
        run("nft", "delete", "table", "inet", "loss")

    @staticmethod
    def lost_packets():
        text = subprocess.run(["nft", "list", "table", "inet", "loss"], check=True, text=True,
                              capture_output=True).stdout
        words = text.split()
        return sum(int(words[at + 1]) for at, word in enumerate(words) if word == "packets")
