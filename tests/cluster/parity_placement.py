"""Prints torchrun's CPU binding and the GPUs that PyTorch would see, on machines made up here.

usage: parity_placement.py CASES SEED > JSON        (with a Python that has torch)

PyTorch's own functions are asked: torch.numa.binding over a made-up /sys, torch.cuda's counting
over a made-up driver.
"""

import io
import json
import os
import random
import sys
import types

import torch
import torch.numa.binding as binding

MODES = ["node", "socket", "exclusive", "core-complex"]


def make_machine(rng):
    """CPUs as dicts, numbered as one vendor or the other does."""
    cpus = []
    threads = rng.choice([1, 1, 2])
    node = 0
    for package in range(rng.choice([1, 2, 2, 4])):
        for _ in range(rng.choice([1, 2, 4])):
            for _ in range(rng.choice([1, 2, 3])):
                cache = object()
                for _ in range(rng.choice([1, 2, 4])):
                    core = object()
                    cpus += [{"package": package, "node": node, "cache": cache, "core": core,
                              "thread": thread} for thread in range(threads)]
            node += 1
    if rng.random() < 0.7:
        cpus.sort(key=lambda cpu: cpu["thread"])  # second threads behind all the first ones
    if rng.random() < 0.1:
        rng.shuffle(cpus)
    for index, cpu in enumerate(cpus):
        cpu["index"] = index
    return cpus, node


def forbid_some(rng, cpus, nodes):
    share = rng.choice([0, 0, 0.2, 0.6])
    for cpu in cpus:
        cpu["allowed"] = rng.random() >= share
    for node in range(nodes):  # PyTorch's "socket" cannot do with a node that has none
        of_node = [cpu for cpu in cpus if cpu["node"] == node]
        if not any(cpu["allowed"] for cpu in of_node):
            rng.choice(of_node)["allowed"] = True


def sharing(cpus, cpu, key):
    return sorted(other["index"] for other in cpus if other[key] is cpu[key])


def make_sys(cpus, nodes, gpu_nodes):
    files = {"/sys/devices/system/node/possible": f"0-{nodes - 1}\n"}
    for node in range(nodes):
        files[f"/sys/devices/system/node/node{node}/cpulist"] = ",".join(
            str(cpu["index"]) for cpu in cpus if cpu["node"] == node)
    for cpu in cpus:
        folder = f"/sys/devices/system/cpu/cpu{cpu['index']}"
        files[f"{folder}/topology/physical_package_id"] = str(cpu["package"])
        files[f"{folder}/topology/thread_siblings_list"] = ",".join(
            map(str, sharing(cpus, cpu, "core")))
        for level, (kind, key) in enumerate(
                [("Data", "core"), ("Instruction", "core"), ("Unified", "cache")]):
            files[f"{folder}/cache/index{level}/type"] = kind
            files[f"{folder}/cache/index{level}/level"] = str(max(1, level))
            files[f"{folder}/cache/index{level}/shared_cpu_list"] = ",".join(
                map(str, sharing(cpus, cpu, key)))
    for number, node in enumerate(gpu_nodes):
        files[f"/sys/bus/pci/devices/0000:{number:02x}:00.0/numa_node"] = str(node)
    return files


def ask_binding(mode, cpus, files, gpu_nodes):
    binding.open = lambda path, *rest: io.StringIO(files[path])
    binding.os = types.SimpleNamespace(
        path=os.path,
        listdir=lambda folder: sorted({path[len(folder) + 1:].split("/")[0] for path in files
                                       if path.startswith(folder + "/")}),
        sched_getaffinity=lambda _: {cpu["index"] for cpu in cpus if cpu["allowed"]})
    binding.torch = types.SimpleNamespace(cuda=types.SimpleNamespace(
        device_count=lambda: len(gpu_nodes),
        get_device_properties=lambda number: types.SimpleNamespace(
            pci_domain_id=0, pci_bus_id=number, pci_device_id=0)))
    options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
    answers = []
    for number in range(len(gpu_nodes)):
        try:
            answers.append(sorted(binding._get_logical_cpus_to_bind_to(
                gpu_index=number, numa_options=options)))
        except RuntimeError:
            answers.append([])  # refused
    return answers


def binding_case(rng):
    cpus, nodes = make_machine(rng)
    forbid_some(rng, cpus, nodes)
    gpu_nodes = [rng.randrange(nodes) for _ in range(rng.randint(1, 8))]
    mode = rng.choice(MODES)
    answers = ask_binding(mode, cpus, make_sys(cpus, nodes, gpu_nodes), gpu_nodes)
    told = [{"index": cpu["index"], "allowed": cpu["allowed"], "node": cpu["node"],
             "package": cpu["package"], "core": sharing(cpus, cpu, "core")[0],
             "cache": sharing(cpus, cpu, "cache")[0]} for cpu in cpus]
    return {"mode": mode, "cpus": told, "gpu_nodes": gpu_nodes, "bound": answers}


def visible_case(rng):
    uuids = ["GPU-aa1", "GPU-aa2", "GPU-b", "GPU-c1-7"][:rng.randint(1, 4)]
    words = rng.choice([["0", "1", "2", "3", "7", "-1", "1x", "x", "", " 2 ", "+1", "GPU-b"],
                        ["GPU-aa1", "GPU-aa2", "GPU-aa", "GPU-b", "GPU-c1", "GPU-z", "0", ""]])
    chosen = ",".join(rng.choice(words) for _ in range(rng.randint(1, 4)))
    os.environ["CUDA_VISIBLE_DEVICES"] = chosen
    torch.cuda._raw_device_count_nvml = lambda: len(uuids)
    torch.cuda._raw_device_uuid_nvml = lambda: uuids
    return {"uuids": uuids, "list": chosen, "count": torch.cuda._device_count_nvml()}


def main():
    cases, seed = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    json.dump({"binding": [binding_case(rng) for _ in range(cases)],
               "visible": [visible_case(rng) for _ in range(cases)]}, sys.stdout)


if __name__ == "__main__":
    main()
