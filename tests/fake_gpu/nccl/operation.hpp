#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <vector>

#include "tests/fake_gpu/nccl/communicator.hpp"
#include "tests/fake_gpu/nccl/operation_kind.hpp"

namespace fake_gpu {

/// A call of NCCL. A field that the call does not use is 0.
struct Operation {
    OperationKind kind;
    const char* from = nullptr;
    char* to = nullptr;
    std::size_t count = 0;  ///< numbers; for each rank, where ranks have parts
    ncclDataType_t type = ncclUint8;
    ncclRedOp_t reduction = ncclSum;
    int peer = 0;  ///< or the root
    ncclComm* communicator = nullptr;
    cudaStream_t stream = nullptr;

    [[nodiscard]] bool is_point_to_point() const { return kind >= OperationKind::Send; }
    [[nodiscard]] std::size_t bytes() const;
};

/// A place for each rank's part of a reduction, by rank.
using Parts = std::vector<std::vector<char>>;

/// Adds the sends and receives of this rank for `operation`. Bytes to be reduced go into `parts`.
void add_transfers(const Operation& operation, std::vector<Transfer>& transfers, Parts& parts);

/// Completes the operation after its transfers: copies this rank's own part, and reduces.
void complete(const Operation& operation, const Parts& parts);

/// Reduces `parts` in the order of ranks: all ranks get the same bits.
void reduce(const Operation& operation, const std::vector<const char*>& parts, char* to);

[[nodiscard]] std::size_t size_of(ncclDataType_t type);

/// Queues `operations` on their streams; those of one communicator and stream as one kernel.
ncclResult_t launch(const std::vector<Operation>& operations);

}  // namespace fake_gpu
