"""Splits the time of a group's start: real PyTorch ranks on this machine, with imports done.

    store_group.py PORT RANKS GROUPS

Each rank connects to the store, then starts GROUPS groups one after the other: init_process_group()
with Gloo, whose ranks connect each to each, then a first all_reduce. At the end Gloo's part alone,
with a store that counts calls. Prints a JSON object: of the slowest rank, in milliseconds, from all
ranks' start: `connect`, `init` and `all_reduce` of each group, `gloo`, how much of that went by in
calls of the store (waiting for other ranks included), `in_store`, and the number of these calls.
"""

import json
import multiprocessing
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

PATIENCE = timedelta(seconds=120)


class Counted(dist.Store):
    """A store in Python around another: counts the calls of a group's start, and their time."""

    def __init__(self, store):
        super().__init__()
        self.store = store
        self.calls = 0
        self.seconds = 0.0

    def asked(self, function, *arguments):
        begin = time.perf_counter()
        answer = function(*arguments)
        self.seconds += time.perf_counter() - begin
        self.calls += 1
        return answer

    def set(self, key, value):
        return self.asked(self.store.set, key, value)

    def get(self, key):
        return self.asked(self.store.get, key)

    def add(self, key, value):
        return self.asked(self.store.add, key, value)

    def wait(self, keys, timeout=PATIENCE):
        return self.asked(self.store.wait, keys, timeout)

    def check(self, keys):
        return self.asked(self.store.check, keys)

    def set_timeout(self, timeout):
        self.store.set_timeout(timeout)


def take_part(rank, ranks, port, groups, prefix, start, results):
    torch.set_num_threads(1)
    start.wait()
    begin = time.perf_counter()
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False,
                          timeout=PATIENCE)
    connected = time.perf_counter() - begin
    found = []
    for number in range(groups):
        start.wait()
        begin = time.perf_counter()
        dist.init_process_group("gloo", store=dist.PrefixStore(f"{prefix}/{number}", store),
                                rank=rank, world_size=ranks)
        made = time.perf_counter()
        dist.all_reduce(torch.ones(1))
        reduced = time.perf_counter()
        dist.destroy_process_group()
        found.append((made - begin, reduced - made))
    counted = Counted(dist.PrefixStore(f"{prefix}/counted", store))
    start.wait()
    begin = time.perf_counter()
    group = dist.ProcessGroupGloo(counted, rank, ranks, PATIENCE)
    made = time.perf_counter() - begin
    results.put((connected, found, made, counted.seconds, counted.calls))
    start.wait()
    del group


def main():
    port, ranks, groups = map(int, sys.argv[1:])
    multiprocessing.set_start_method("fork")
    prefix = time.time_ns()  # The server has keys of earlier runs.
    start, results = multiprocessing.Barrier(ranks), multiprocessing.Queue()
    processes = [multiprocessing.Process(target=take_part,
                                         args=(rank, ranks, port, groups, prefix, start, results))
                 for rank in range(ranks)]
    for process in processes:
        process.start()
    found = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    slowest = max(found, key=lambda one: one[3])
    print(json.dumps({
        "connect": max(one[0] for one in found) * 1e3,
        "init": [max(one[1][number][0] for one in found) * 1e3 for number in range(groups)],
        "all_reduce": [max(one[1][number][1] for one in found) * 1e3 for number in range(groups)],
        "gloo": max(one[2] for one in found) * 1e3, "in_store": slowest[3] * 1e3,
        "store_calls": slowest[4]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
