"""PyTorch's own clients do the same, chosen at random, with PyTorch's server and with ours.

    store_differential.py PORT SEED OPERATIONS

PORT is ours. In lock step: clients act one after another, and a client that waits is known to wait
at both servers before the next one acts; every result, every exception and each release is
compared. Then all clients at once, and the sums are compared. Exit code 1 and the history of
a difference, which the same seed shows again; otherwise a line that counts.

Left out is what is different on purpose, which rendezvous/store/README.md lists: see choose().
"""

import collections
import datetime
import multiprocessing
import os
import random
import re
import sys
import time

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # before PyTorch: each time-out would be a warning
import torch.distributed as dist  # noqa: E402

CLIENTS = 4
LONG = 300.0  # seconds; a client that waits with it is released before
SHORT = 0.010
KEYS = [f"k{number}" for number in range(6)]
COUNTERS = ["n0", "n1"]
QUEUES = ["q0", "q1"]
BARRIERS = {"b0": 1, "b1": 2, "b2": 3}  # key -> world size
PREFIXES = [(), ("p",), ("p", "o")]
VALUES = ["", "1", "-7", " 12abc", "v" * 70000, "x\0y", "99999999999999999999"]
# How often each call is chosen. A new connection is slow where PyTorch's server asks a name server.
CHANCES = {
    "set": 20, "get": 20, "add": 20, "wait": 20, "delete_key": 20, "compare_set": 15, "check": 10,
    "num_keys": 10, "append": 10, "multi_get": 10, "multi_set": 10, "queue_push": 10,
    "queue_pop": 10, "queue_pop_blocking": 10, "queue_len": 10, "list_keys": 10, "barrier": 10,
    "barrier_key": 5, "clone": 1, "reconnect": 1, "oversized": 1}
HISTORY = 30
PATIENCE = 60.0  # seconds for what does not wait
# These calls have no answer. Other calls may overtake one on its way to one of the servers.
UNANSWERED = ["set", "append", "multi_set", "queue_push"]
POLL = "7"  # the number of the system call in which a client waits


def span(seconds):
    return datetime.timedelta(seconds=seconds)


# ----------------------------------------------------------------------------- a client's process


class Client:
    """One client of one server, in a process of its own: a blocking queue_pop() holds Python's
    lock."""

    def __init__(self, port):
        self.port = port
        self.connect()

    def connect(self):
        self.store = dist.TCPStore("127.0.0.1", self.port, is_master=False,
                                   wait_for_workers=False, timeout=span(60))

    def act(self, name, prefix, arguments, timeout_s):
        store = self.store
        for part in prefix:
            store = dist.PrefixStore(part, store)
        try:
            self.store.set_timeout(span(timeout_s))
            if name == "reconnect":
                return self.connect()
            if name == "clone":
                self.store = self.store.clone()
                return None
            if name == "oversized":
                # It has no answer, so the next call hears of it.
                self.store.set("k" * 9000, "v")
                self.store.check(["k0"])
                return "no error"
            if name == "wait":
                return store.wait(arguments[0], span(timeout_s))
            if name == "barrier":
                return store.barrier(*arguments, span(timeout_s))
            result = getattr(store, name)(*arguments)
            if name in UNANSWERED:
                self.store.check(["k0"])  # Requests of one connection are carried out in order.
            return sorted(result) if name == "list_keys" else result
        except Exception as error:  # whatever it is, it is compared
            # Addresses and what the system calls the end of a connection are not the store's.
            text = re.sub(r"\[[^\]]*\]:\d+|\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS", str(error))
            is_network = isinstance(error, dist.DistNetworkError)
            return (type(error).__name__, "" if is_network else text.splitlines()[0])

    def rush(self, count):
        """With all others at once."""
        for number in range(count):
            self.store.add("rush/counter", number % 3)
            self.store.append("rush/text", "x")
            self.store.queue_push("rush/queue", "e")
            # Words of its own: what another has stored must not look like success.
            seen = self.store.get("rush/turns")
            while True:
                old = seen.decode()
                new = f"{int(old.split()[0]) + 1} {os.getpid()} {number}"
                seen = self.store.compare_set("rush/turns", old, new)
                if seen.decode() == new:
                    break
        return None


def run_client(pipe):
    client = None
    while True:
        message = pipe.recv()
        if message is None:
            return
        name, *rest = message
        if name == "port":
            client = Client(*rest)
            pipe.send(None)
        elif name == "rush":
            pipe.send(client.rush(*rest))
        else:
            pipe.send(client.act(name, *rest))


# --------------------------------------------------------------------------------- the comparison


class Pair:
    """The same client of both servers."""

    def __init__(self):
        self.pipes = []
        self.processes = []
        for _ in range(2):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=run_client, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        self.waits_for = None
        self.missing = set()  # of the names that it waits for, those that have not been there

    def begin(self, *message):
        for pipe in self.pipes:
            pipe.send(message)

    def finish(self):
        return [pipe.recv() if pipe.poll(PATIENCE) else "no answer" for pipe in self.pipes]

    def do(self, *message):
        self.begin(*message)
        return self.finish()

    def state(self):
        """Says for each process: True it waits for the server, False it has a result.

        On a busy machine the kernel may hold up bytes that one of them has sent or is to get while
        others overtake them; so a difference is one when it stays."""
        end = time.monotonic() + PATIENCE
        while True:
            states = [self.settled(process, pipe)
                      for process, pipe in zip(self.processes, self.pipes)]
            if states[0] == states[1] or time.monotonic() > end:
                return states
            time.sleep(0)

    @staticmethod
    def settled(process, pipe):
        while True:
            if pipe.poll():
                return False
            with open(f"/proc/{process.pid}/syscall", encoding="ascii") as file:
                call = file.read().split()[0]
            if call == POLL and not pipe.poll():
                return True
            time.sleep(0)  # It is on its way; no other sign shows it.


class Comparison:
    def __init__(self, seed, ports):
        self.random = random.Random(seed)
        self.pairs = [Pair() for _ in range(CLIENTS)]
        self.control = Pair()
        self.ports = ports
        self.history = collections.deque(maxlen=HISTORY)
        self.counts = collections.Counter()
        self.fresh = 0

    def start(self):
        for pair in [*self.pairs, self.control]:
            for pipe, port in zip(pair.pipes, self.ports()):
                pipe.send(("port", port))
        for pair in [*self.pairs, self.control]:
            pair.finish()

    def stop(self):
        for pair in [*self.pairs, self.control]:
            for pipe in pair.pipes:
                pipe.send(None)
            for process in pair.processes:
                process.join(10)

    def compare(self, what, results):
        theirs, ours = results
        self.history.append(f"{what} -> {shown(theirs)}")
        if theirs != ours or theirs == "no answer":
            raise AssertionError(f"{what}: PyTorch {shown(theirs)}, ours {shown(ours)}")
        return theirs

    def ask(self, name, *arguments):
        """Asks both servers through the control client."""
        results = self.control.do(name, (), arguments, LONG)
        return self.compare(f"control {name}{arguments}", results)

    # ------------------------------------------------------------------------------ what to do

    def names(self, pool, most):
        return [self.random.choice(pool) for _ in range(self.random.randint(1, most))]

    def choose(self, busy_keys):
        """name, prefix, arguments, the raw names on which it may wait, whether these are queues."""
        chance = self.random
        prefix = chance.choice(PREFIXES)

        def raw(key):
            return "".join(part + "/" for part in prefix) + key

        key = chance.choice(KEYS + COUNTERS)
        name = chance.choices(list(CHANCES), list(CHANCES.values()))[0]
        value = chance.choice(VALUES)
        if name == "set":
            return name, prefix, (key, value), None
        if name == "add":
            return name, prefix, (chance.choice([key] + 4 * COUNTERS), chance.choice(
                [0, 1, -3, 2**63 - 1])), None
        if name == "compare_set":
            # One that fails wakes waiters at PyTorch's only.
            if raw(key) in busy_keys:
                return None
            return name, prefix, (key, chance.choice(VALUES), value), None
        if name == "append":
            return name, prefix, (key, chance.choice(VALUES[1:4])), None
        if name in ("get", "delete_key"):
            return name, prefix, (key,), [raw(key)] if name == "get" else None
        if name in ("wait", "multi_get"):
            keys = self.names(KEYS + COUNTERS, 3)
            return name, prefix, (keys,), [raw(one) for one in keys]
        if name == "check":
            return name, prefix, (self.names(KEYS + COUNTERS + QUEUES, 3),), None
        if name == "multi_set":
            keys = self.names(KEYS, 3)
            return name, prefix, (keys, [chance.choice(VALUES) for _ in keys]), None
        if name in ("queue_push", "queue_len"):
            arguments = (chance.choice(QUEUES),) + ((value,) if name == "queue_push" else ())
            return name, prefix, arguments, None
        if name == "queue_pop":
            return name, prefix, (chance.choice(QUEUES), False), None
        if name == "queue_pop_blocking":
            # PyTorch's server never forgets who has waited for a queue: every queue waits once.
            self.fresh += 1
            queue = f"once{self.fresh}"
            return "queue_pop", prefix, (queue, True), [raw(queue)]
        if name.startswith("barrier"):
            # Any change of a barrier's key opens it at PyTorch's, so nothing else uses the key. (A
            # PrefixStore's barrier is an add and a wait.)
            key = chance.choice(list(BARRIERS))
            if name == "barrier":
                return name, (), (key, BARRIERS[key]), [key]
            return None if key in busy_keys else ("delete_key", (), (key,), None)
        return name, (), (), None

    def barrier_count(self, key):
        return int(self.ask("get", key)) if self.ask("check", [key]) else 0

    def would_wait(self, name, awaited, barrier_count):
        if awaited is None:
            return False
        if name == "barrier":
            return barrier_count + 1 < BARRIERS[awaited[0]]
        return not self.ask("check", awaited)

    def is_missing(self, name, key):
        """For who waits for it, after each step."""
        if name == "queue_pop":
            return True  # Only release() makes it.
        if name == "barrier":
            return self.barrier_count(key) < BARRIERS[key]
        return not self.ask("check", [key])

    def until_counted(self, key, count):
        """A barrier has changed its key when it waits; until then others may overtake it."""
        end = time.monotonic() + PATIENCE
        wanted = [str(count).encode()] * 2
        while (self.control.do("check", (), ([key],), LONG) != [True, True]
               or self.control.do("get", (), (key,), LONG) != wanted):
            if time.monotonic() > end:
                raise AssertionError(f"barrier {key} is not counted as {count} by both")

    # ------------------------------------------------------------------------------ the steps

    def step(self):
        waiting = [pair for pair in self.pairs if pair.waits_for]
        busy_keys = {key for pair in waiting for key in pair.waits_for[1]}
        idle = [pair for pair in self.pairs if not pair.waits_for]
        if len(idle) == 1 or (waiting and self.random.random() < 0.2):
            self.release(self.random.choice(waiting))
            return
        choice = self.choose(busy_keys)
        if choice is None:
            return
        name, prefix, arguments, awaited = choice
        pair = self.random.choice(idle)
        who = f"client {self.pairs.index(pair)} {'/'.join(prefix)} {name}{shown(arguments)}"
        self.counts[name] += 1
        before = self.barrier_count(awaited[0]) if name == "barrier" else 0
        if not self.would_wait(name, awaited, before):
            result = self.compare(who, pair.do(name, prefix, arguments, LONG))
            if isinstance(result, tuple) and result[0] == "DistNetworkError":
                self.compare("reconnect", pair.do("reconnect", (), (), LONG))
        elif self.random.random() < 0.7:
            self.counts["timeouts"] += 1
            self.compare(who, pair.do(name, prefix, arguments, SHORT))
        else:
            self.counts["waits"] += 1
            self.history.append(f"{who} waits")
            pair.begin(name, prefix, arguments, LONG)
            pair.waits_for = (name, awaited, who)
            pair.missing = set(awaited)
            if pair.state() != [True, True]:
                raise AssertionError(f"{who}: does not wait at both: {pair.finish()}")
            if name == "barrier":
                self.until_counted(awaited[0], before + 1)
        self.look()

    def release(self, pair):
        """Makes one of the names that `pair` waits for."""
        name, awaited, who = pair.waits_for
        key = self.random.choice(awaited)
        if name == "queue_pop":
            self.ask("queue_push", key, "element")
            pair.missing.clear()
        elif name == "barrier":
            # Gives up at once when others are still missing, but is counted.
            is_last = self.barrier_count(key) + 1 >= BARRIERS[key]
            results = self.control.do(name, (), (key, BARRIERS[key]), LONG if is_last else SHORT)
            self.compare(f"control barrier {key}", results)
        else:
            self.ask(*self.random.choice(
                [("set", key, "s"), ("append", key, "a"), ("multi_set", [key], ["m"])]))
        self.counts["releases"] += 1
        self.history.append(f"for {who}")
        self.look()

    def look(self):
        """Checks that a pair that waits no more has the same result at both servers."""
        if not any(pair.waits_for for pair in self.pairs):
            return
        self.ask("num_keys")  # Now both servers have sent all releases.
        for pair in self.pairs:
            if not pair.waits_for:
                continue
            name, _, who = pair.waits_for
            pair.missing = {key for key in pair.missing if self.is_missing(name, key)}
            if not pair.missing:
                # On its way to what it does next it may look as if it waited on.
                pair.waits_for = None
                self.compare(f"{who} released", pair.finish())
                continue
            state = pair.state()
            if state[0] != state[1]:
                still = ["PyTorch's" if state[0] else "ours"]
                raise AssertionError(f"{who}: waits on at {still[0]} only")
            if not state[0]:
                pair.waits_for = None
                self.compare(f"{who} released", pair.finish())

    def rush(self, count):
        """All at once; what is left is the same."""
        while any(pair.waits_for for pair in self.pairs):
            self.release(next(pair for pair in self.pairs if pair.waits_for))
        self.ask("set", "rush/turns", "0")
        for pair in self.pairs:
            pair.begin("rush", count)
        for pair in self.pairs:
            pair.finish()
        turns = [words.split()[0] for words in self.control.do("get", (), ("rush/turns",), LONG)]
        self.compare("turns of all clients at once", turns)
        self.ask("get", "rush/counter")
        self.ask("get", "rush/text")
        self.ask("queue_len", "rush/queue")


def shown(value):
    text = repr(value)
    return text if len(text) < 200 else f"{text[:150]}... {len(text)} characters"


def main():
    port, seed, operations = map(int, sys.argv[1:])
    multiprocessing.set_start_method("fork")
    server = None
    # The clients' processes come before PyTorch's server, which has threads.
    comparison = Comparison(seed, lambda: (server.port, port))
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    comparison.start()
    begin = time.monotonic()
    try:
        for _ in range(operations):
            comparison.step()
        comparison.rush(max(20, operations // 100))
    except AssertionError as error:
        print("\n".join(comparison.history))
        print(f"store_differential.py: seed {seed}: DIFFERENT: {error}")
        return 1
    comparison.stop()
    print(f"store_differential.py: seed {seed}: {operations} operations in "
          f"{time.monotonic() - begin:.1f} s, no difference: {dict(comparison.counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
