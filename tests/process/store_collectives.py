"""Does over our store what PyTorch programs do: store_collectives.py PORT. Two ranks; exit code
0 if everything came out right."""

import multiprocessing
import os
import sys

WORLD = 2


def add(left, right):
    return left + right


def rank_main(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(WORLD), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1",
                      TORCHELASTIC_USE_AGENT_STORE="True", TORCH_CPP_LOG_LEVEL="ERROR",
                      GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    import torch
    import torch.distributed as dist
    from torch.distributed import rpc
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    number = torch.tensor([float(rank + 1)])
    dist.all_reduce(number)
    assert number.item() == 3, number
    for ranks in ([0, 1], [1, 0]):
        group = dist.new_group(ranks)
        dist.barrier(group)
        dist.destroy_process_group(group)
    dist.monitored_barrier()

    gathered = [None] * WORLD
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 100000})
    assert [one["rank"] for one in gathered] == [0, 1], gathered
    objects = [{"from": rank}]
    dist.broadcast_object_list(objects, src=1)
    assert objects == [{"from": 1}], objects

    mesh = init_device_mesh("cpu", (WORLD,))
    model = torch.nn.Linear(8, 4)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    dist.destroy_process_group()

    if rpc.is_available():
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=WORLD)
        assert rpc.rpc_sync(f"worker{1 - rank}", add, (rank, 40)) == 40 + rank
        rpc.shutdown()


def main():
    port = int(sys.argv[1])
    multiprocessing.set_start_method("spawn")
    ranks = [multiprocessing.Process(target=rank_main, args=(rank, port)) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    if codes != [0] * WORLD:
        print("store_collectives.py: exit codes", codes)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
