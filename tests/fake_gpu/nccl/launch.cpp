#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/fake_gpu/cudart/errors.hpp"
#include "tests/fake_gpu/nccl/faults.hpp"
#include "tests/fake_gpu/nccl/operation.hpp"

namespace fake_gpu {

namespace {

/// The operations of one communicator and stream that were called in one group.
struct Batch {
    std::shared_ptr<ncclComm> communicator;
    cudaStream_t stream = nullptr;
    std::vector<Operation> operations;
    std::uint64_t ticket = 0;
    Fault fault;
};

using Operations = std::vector<Operation>;

/// The first send of this rank to itself goes to the first receive, and so on.
void copy_to_itself(Operations::const_iterator begin, Operations::const_iterator end) {
    std::vector<const Operation*> sends;
    for (auto operation = begin; operation != end; ++operation) {
        if (operation->kind == OperationKind::Send &&
            operation->peer == operation->communicator->rank()) {
            sends.push_back(&*operation);
        }
    }
    auto send = sends.begin();
    for (auto operation = begin; operation != end && send != sends.end(); ++operation) {
        if (operation->kind == OperationKind::Receive &&
            operation->peer == operation->communicator->rank()) {
            std::memmove(operation->to, (*send++)->from, operation->bytes());
        }
    }
}

/// Runs sends and receives of one group together, collectives one after another. Returns false when
/// the communicator is aborted.
bool run_operations(ncclComm& communicator, const Operations& operations) {
    for (auto begin = operations.begin(); begin != operations.end();) {
        auto end = std::next(begin);
        if (begin->is_point_to_point()) {
            end = std::find_if_not(begin, operations.end(), [](const Operation& operation) {
                return operation.is_point_to_point();
            });
            copy_to_itself(begin, end);
        }
        std::vector<Transfer> transfers;
        Parts parts(static_cast<std::size_t>(communicator.size()));
        std::for_each(begin, end, [&](const Operation& operation) {
            add_transfers(operation, transfers, parts);
        });
        if (!communicator.exchange(Channel::Streams, std::move(transfers))) {
            return false;
        }
        std::for_each(begin, end, [&](const Operation& operation) { complete(operation, parts); });
        begin = end;
    }
    return true;
}

/// Lets the fault happen. Returns false when the operation then takes no part.
bool suffer(ncclComm& communicator, const Fault& fault) {
    switch (fault.kind) {
        case FaultKind::Die:
            (void)raise(SIGKILL);
            return false;
        case FaultKind::Error:
            communicator.set_async_error(ncclRemoteError, "fake GPU: an error that was asked for");
            communicator.wait_for_abort();
            return false;
        case FaultKind::Hang:
            communicator.wait_for_abort();
            return false;
        case FaultKind::Slow:
            communicator.pause(fault.time);
            return !communicator.is_aborted();
        case FaultKind::Break:
            communicator.pause(fault.time);
            cudaFakeGpuBreak();
            return false;
        case FaultKind::Refuse:
        case FaultKind::None:
            return true;
    }
    return true;
}

/// Runs on the thread of a stream.
void run_batch(void* data) {
    const std::unique_ptr<Batch> batch(static_cast<Batch*>(data));
    ncclComm& communicator = *batch->communicator;
    if (communicator.begin_turn(batch->ticket) && suffer(communicator, batch->fault)) {
        (void)run_operations(communicator, batch->operations);
    }
    communicator.end_turn();
}

std::vector<Batch> batches_of(const Operations& operations) {
    std::vector<Batch> batches;
    for (const Operation& operation : operations) {
        const auto found = std::find_if(batches.begin(), batches.end(), [&](const Batch& batch) {
            return batch.communicator.get() == operation.communicator &&
                   batch.stream == operation.stream;
        });
        Batch& batch = found != batches.end() ? *found : batches.emplace_back();
        batch.communicator = operation.communicator->shared_from_this();
        batch.stream = operation.stream;
        batch.operations.push_back(operation);
    }
    return batches;
}

}  // namespace

ncclResult_t launch(const Operations& operations) {
    ncclResult_t result = ncclSuccess;
    for (Batch& batch : batches_of(operations)) {
        // Another thread may abort the communicator meanwhile.
        const std::shared_ptr<ncclComm> communicator = batch.communicator;
        batch.fault = next_fault_of_operation();
        if (batch.fault.kind == FaultKind::Refuse) {
            return refuse(ncclSystemError, "fake GPU: the operation is refused");
        }
        for (const Operation& operation : batch.operations) {
            communicator->count_launch(operation.kind);
        }
        batch.ticket = communicator->take_ticket();
        const cudaStream_t stream = batch.stream;
        const auto kind = static_cast<std::size_t>(batch.operations.front().kind);
        Batch* const queued = std::make_unique<Batch>(std::move(batch)).release();
        if (cudaLaunchHostFunc(stream, run_batch, queued) != cudaSuccess) {
            return refuse(ncclUnhandledCudaError, "fake GPU: the GPU is broken");
        }
        if (communicator->accept_call(kind) == ncclInProgress) {
            result = ncclInProgress;
        }
    }
    return result;
}

}  // namespace fake_gpu
