"""Eight real PyTorch clients: connect, then barriers (add, the last one sets, all wait).

    store_clients.py PORT ROUNDS

Prints a JSON object: milliseconds of each client to connect, of its first client's rounds.
"""

import json
import multiprocessing
import sys
import time
from datetime import timedelta

import torch.distributed as dist

CLIENTS = 8


def take_part(index, port, rounds, start, results):
    start.wait()
    begin = time.perf_counter()
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False,
                          timeout=timedelta(seconds=60))
    connected_ms = (time.perf_counter() - begin) * 1e3
    times_ms = []
    for number in range(rounds):
        begin = time.perf_counter()
        if store.add(f"{number}/members", 1) == CLIENTS:
            store.set(f"{number}/last", "<val_ignored>")
        store.wait([f"{number}/last"])
        times_ms.append((time.perf_counter() - begin) * 1e3)
    results.put((index, connected_ms, times_ms))


def main():
    port, rounds = map(int, sys.argv[1:])
    multiprocessing.set_start_method("fork")
    start, results = multiprocessing.Barrier(CLIENTS), multiprocessing.Queue()
    clients = [multiprocessing.Process(target=take_part, args=(i, port, rounds, start, results))
               for i in range(CLIENTS)]
    for client in clients:
        client.start()
    found = sorted(results.get(timeout=60) for _ in clients)
    for client in clients:
        client.join()
    print(json.dumps({"connect_ms": [one[1] for one in found],
                      "rounds_ms": found[0][2][rounds // 10:]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
