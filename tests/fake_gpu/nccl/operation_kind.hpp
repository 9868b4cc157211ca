#pragma once

namespace fake_gpu {

enum class OperationKind {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    Gather,
    Scatter,
    Send,
    Receive,
};

}  // namespace fake_gpu
