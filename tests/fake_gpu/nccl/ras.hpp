#pragma once

#include <memory>

struct ncclComm;

/// NCCL's RAS: a program asks one process of a job, over TCP, which collectives each rank of its
/// communicators has launched. Answers as NCCL 2.28.7 and later do to VERBOSE STATUS in JSON.
namespace fake_gpu {

/// RAS reports `communicator` from now on, while it lives. The first call of the process listens
/// at NCCL_RAS_ADDR, if that is set. Another process of the job may have the address: then it
/// answers, and this one does not, as in NCCL.
void show_to_ras(const std::shared_ptr<ncclComm>& communicator);

}  // namespace fake_gpu
