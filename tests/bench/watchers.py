#!/usr/bin/env python3
"""Watchers of a daemon: as many pages as --count says, each of which follows a job's events and the
progress of its ranks. Reads until its standard input ends, then prints what came, as JSON.

usage: watchers.py --endpoint HOST:PORT --job JOB --count N
"""

import argparse
import json
import os
import resource
import selectors
import socket
import sys


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--count", type=int, required=True)
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    host, port = arguments.endpoint.rsplit(":", 1)
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin, selectors.EVENT_READ)
    for _ in range(arguments.count):
        watcher = socket.create_connection((host, int(port)))
        watcher.sendall(f"GET /events?job={arguments.job}&follow=1 HTTP/1.1\r\nHost: localhost\r\n"
                        "Accept: text/event-stream\r\n\r\n".encode())
        watcher.setblocking(False)
        waiting.register(watcher, selectors.EVENT_READ)
    print("connected", flush=True)
    got = dropped = 0
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                if os.read(sys.stdin.fileno(), 1) == b"":
                    print(json.dumps({"bytes": got, "dropped": dropped}), flush=True)
                    return
                continue
            try:
                piece = key.fileobj.recv(1 << 20)
            except ConnectionError:
                piece = b""
            got += len(piece)
            if not piece:
                dropped += 1
                waiting.unregister(key.fileobj)
                key.fileobj.close()


if __name__ == "__main__":
    main()
