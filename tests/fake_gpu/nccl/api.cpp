// NCCL's functions. A group collects the calls of a thread, and ncclGroupEnd() starts them
// together.

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fake_gpu/nccl/communicator.hpp"
#include "tests/fake_gpu/nccl/operation.hpp"

namespace {

using fake_gpu::Operation;
using fake_gpu::OperationKind;
using fake_gpu::refuse;
using fake_gpu::Transfer;

struct Group {
    int depth = 0;
    std::vector<Operation> operations;
    std::vector<std::function<ncclResult_t()>> connects;
};
thread_local Group group;

bool is_blocking(const ncclConfig_t* config) {
    return config == nullptr || config->blocking != 0;
}

/// Connects `*made`, or makes it null.
ncclResult_t connect_or_forget(ncclComm_t* made) {
    ncclComm* const communicator = *made;
    const ncclResult_t result = communicator->connect();
    if (result != ncclSuccess) {
        *made = nullptr;
        communicator->let_go();
    }
    return result;
}

ncclResult_t init(ncclComm_t* made, ncclComm::Place place, const ncclConfig_t* config) {
    int device = 0;
    if (place.rank < 0 || place.rank >= place.size) {
        return refuse(ncclInvalidArgument, "fake GPU: no such rank");
    }
    if (cudaGetDevice(&device) != cudaSuccess) {
        return refuse(ncclUnhandledCudaError, "fake GPU: no device");
    }
    *made = ncclComm::make(std::move(place), is_blocking(config));
    if (!is_blocking(config)) {
        (*made)->run_aside([communicator = *made] { return communicator->connect(); });
        return ncclInProgress;
    }
    if (group.depth > 0) {
        group.connects.push_back([made, device] {
            (void)cudaSetDevice(device);
            return connect_or_forget(made);
        });
        return ncclSuccess;
    }
    return connect_or_forget(made);
}

/// Ranks of one process wait for each other.
ncclResult_t connect_together(std::vector<std::function<ncclResult_t()>> connects) {
    std::vector<ncclResult_t> results(connects.size(), ncclSuccess);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < connects.size(); ++i) {
        threads.emplace_back([&, i] { results[i] = connects[i](); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    const auto failed = std::find_if(results.begin(), results.end(),
                                     [](ncclResult_t result) { return result != ncclSuccess; });
    return failed == results.end() ? ncclSuccess : *failed;
}

ncclResult_t call(const Operation& operation) {
    ncclComm* const communicator = operation.communicator;
    if (communicator == nullptr) {
        return refuse(ncclInvalidArgument, "fake GPU: no communicator");
    }
    if (communicator->is_aborted()) {
        return refuse(ncclInvalidUsage, "fake GPU: the communicator is aborted");
    }
    if (communicator->is_in_progress()) {
        return refuse(ncclInvalidArgument,
                      "Attempt to use communicator before the previous operation returned "
                      "ncclSuccess");
    }
    if (group.depth > 0) {
        group.operations.push_back(operation);
        return ncclSuccess;
    }
    return fake_gpu::launch({operation});
}

struct SplitKey {
    int color = 0;
    int key = 0;
};

/// Fills `all` with the keys of all ranks. Returns false when the communicator is aborted.
bool exchange_keys(ncclComm& parent, SplitKey& mine, std::vector<SplitKey>& all) {
    std::vector<Transfer> transfers;
    for (int rank = 0; rank < parent.size(); ++rank) {
        SplitKey& other = all.at(static_cast<std::size_t>(rank));
        if (rank == parent.rank()) {
            other = mine;
            continue;
        }
        transfers.push_back({.direction = Transfer::Direction::Send,
                             .peer = rank,
                             .at = reinterpret_cast<char*>(&mine),
                             .left = sizeof mine});
        transfers.push_back({.direction = Transfer::Direction::Receive,
                             .peer = rank,
                             .at = reinterpret_cast<char*>(&other),
                             .left = sizeof other});
    }
    return parent.exchange(fake_gpu::Channel::Host, std::move(transfers));
}

/// The place among the ranks of the same color, ordered by key, then by rank.
ncclComm::Place place_of(const ncclComm& parent, int child, const std::vector<SplitKey>& all) {
    const SplitKey mine = all.at(static_cast<std::size_t>(parent.rank()));
    ncclComm::Place place{
        .id = parent.id() + "." + std::to_string(child) + "." + std::to_string(mine.color),
        .rank = 0,
        .size = 0};
    for (int rank = 0; rank < parent.size(); ++rank) {
        const SplitKey other = all.at(static_cast<std::size_t>(rank));
        if (other.color != mine.color) {
            continue;
        }
        ++place.size;
        if (std::pair(other.key, rank) < std::pair(mine.key, parent.rank())) {
            ++place.rank;
        }
    }
    return place;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    std::array<std::uint64_t, 2> random{};
    if (getrandom(random.data(), sizeof random, 0) != sizeof random) {
        return ncclSystemError;
    }
    *id = {};
    (void)std::snprintf(id->internal, sizeof id->internal, "%016" PRIx64 "%016" PRIx64, random[0],
                        random[1]);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    const char* const name = &id.internal[0];  // tidy: allow machine
    return init(made, {.id = name, .rank = rank, .size = size}, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t* made, int size, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(made, size, id, rank, nullptr);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* made, int size, int rank, int /*id_count*/,
                                      ncclUniqueId* ids, ncclConfig_t* config) {
    return ncclCommInitRankConfig(made, size, ids[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t* made, int size, const int* devices) {
    ncclUniqueId id;
    int before = 0;
    (void)ncclGetUniqueId(&id);
    (void)cudaGetDevice(&before);
    (void)ncclGroupStart();
    for (int rank = 0; rank < size; ++rank) {
        (void)cudaSetDevice(devices == nullptr ? rank : devices[rank]);
        (void)ncclCommInitRank(&made[rank], size, id, rank);
    }
    (void)cudaSetDevice(before);
    return ncclGroupEnd();
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
    if (communicator != nullptr) {
        communicator->drain();
    }
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
    if (communicator != nullptr) {
        communicator->drain();
        communicator->let_go();
    }
    return ncclSuccess;
}

/// LibTorch passes null when it aborts a communicator a second time.
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
    if (communicator != nullptr) {
        communicator->abort();
        communicator->let_go();
    }
    return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t communicator, int /*flags*/) {
    if (communicator == nullptr) {
        return ncclInvalidArgument;
    }
    communicator->abort();
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
    if (communicator == nullptr) {
        return ncclInvalidArgument;
    }
    *error = communicator->async_error();
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t communicator, int* count) {
    *count = communicator->size();
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
    *rank = communicator->rank();
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t communicator, int* device) {
    *device = communicator->device();
    return ncclSuccess;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
    if (parent == nullptr) {
        return ncclInvalidArgument;
    }
    *made = nullptr;
    SplitKey mine{.color = color, .key = key};
    std::vector<SplitKey> all(static_cast<std::size_t>(parent->size()));
    if (!exchange_keys(*parent, mine, all)) {
        return refuse(ncclInternalError, "fake GPU: aborted while it splits");
    }
    const int child = parent->next_child();
    return color == NCCL_SPLIT_NOCOLOR ? ncclSuccess
                                       : init(made, place_of(*parent, child, all), config);
}

/// All ranks that stay exclude the same ranks.
ncclResult_t ncclCommShrink(ncclComm_t parent, int* excluded, int count, ncclComm_t* made,
                            ncclConfig_t* config, int flags) {
    if ((flags & NCCL_SHRINK_ABORT) != 0) {
        parent->abort();
    }
    ncclComm::Place place{
        .id = parent->id() + ".s" + std::to_string(parent->next_child()), .rank = 0, .size = 0};
    for (int rank = 0; rank < parent->size(); ++rank) {
        if (std::find(excluded, excluded + count, rank) != excluded + count) {
            place.id += "-" + std::to_string(rank);
            continue;
        }
        place.rank = rank == parent->rank() ? place.size : place.rank;
        ++place.size;
    }
    return init(made, std::move(place), config);
}

const char* ncclGetErrorString(ncclResult_t error) {
    switch (error) {
        case ncclSuccess:
            return "no error";
        case ncclUnhandledCudaError:
            return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case ncclSystemError:
            return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case ncclInternalError:
            return "internal error - please report this issue to the NCCL developers";
        case ncclInvalidArgument:
            return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case ncclInvalidUsage:
            return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        case ncclInProgress:
            return "NCCL operation in progress";
        default:
            return "unknown result code";
    }
}

const char* ncclGetLastError(ncclComm_t communicator) {
    static thread_local std::string text;
    text = communicator == nullptr ? std::string() : communicator->last_error();
    text = text.empty() ? fake_gpu::last_refusal() : text;
    return text.c_str();
}

ncclResult_t ncclCommRegister(const ncclComm_t /*communicator*/, void* start, std::size_t /*bytes*/,
                              void** handle) {
    *handle = start;
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t /*communicator*/, void* /*handle*/) {
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** start, std::size_t bytes) {
    return cudaMalloc(start, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void* start) {
    return cudaFree(start) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* reduction, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t /*residence*/,
                                      ncclComm_t communicator) {
    const auto* const bytes = static_cast<const char*>(scalar);
    *reduction = communicator->add_scalar(
        {.type = type, .bytes = std::vector<char>(bytes, bytes + fake_gpu::size_of(type))});
    return ncclSuccess;
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t /*reduction*/, ncclComm_t /*communicator*/) {
    return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
    ++group.depth;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    if (--group.depth > 0) {
        return ncclSuccess;
    }
    const Group ended = std::exchange(group, Group{});
    const ncclResult_t result = connect_together(ended.connects);
    return result != ncclSuccess ? result : fake_gpu::launch(ended.operations);
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t communicator, cudaStream_t stream) {
    return call({.kind = OperationKind::AllReduce,
                 .from = static_cast<const char*>(from),
                 .to = static_cast<char*>(to),
                 .count = count,
                 .type = type,
                 .reduction = reduction,
                 .communicator = communicator,
                 .stream = stream});
}

ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, int root, ncclComm_t communicator,
                        cudaStream_t stream) {
    return call({.kind = OperationKind::Reduce,
                 .from = static_cast<const char*>(from),
                 .to = static_cast<char*>(to),
                 .count = count,
                 .type = type,
                 .reduction = reduction,
                 .peer = root,
                 .communicator = communicator,
                 .stream = stream});
}

ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t communicator,
                               cudaStream_t stream) {
    return call({.kind = OperationKind::ReduceScatter,
                 .from = static_cast<const char*>(from),
                 .to = static_cast<char*>(to),
                 .count = count,
                 .type = type,
                 .reduction = reduction,
                 .communicator = communicator,
                 .stream = stream});
}

ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t communicator, cudaStream_t stream) {
    return call({.kind = OperationKind::Broadcast,
                 .from = static_cast<const char*>(from),
                 .to = static_cast<char*>(to),
                 .count = count,
                 .type = type,
                 .peer = root,
                 .communicator = communicator,
                 .stream = stream});
}

ncclResult_t ncclBcast(void* numbers, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t communicator, cudaStream_t stream) {
    return ncclBroadcast(numbers, numbers, count, type, root, communicator, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) {
    return call({.kind = OperationKind::AllGather,
                 .from = static_cast<const char*>(from),
                 .to = static_cast<char*>(to),
                 .count = count,
                 .type = type,
                 .communicator = communicator,
                 .stream = stream});
}

ncclResult_t ncclAlltoAll(const void* from, void* to, std::size_t count, ncclDataType_t type,
                          ncclComm_t communicator, cudaStream_t stream) {
    return call({.kind = OperationKind::AllToAll,
                 .from = static_cast<const char*>(from),
                 .to = static_cast<char*>(to),
                 .count = count,
                 .type = type,
                 .communicator = communicator,
                 .stream = stream});
}

ncclResult_t ncclGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                        int root, ncclComm_t communicator, cudaStream_t stream) {
    return call({.kind = OperationKind::Gather,
                 .from = static_cast<const char*>(from),
                 .to = static_cast<char*>(to),
                 .count = count,
                 .type = type,
                 .peer = root,
                 .communicator = communicator,
                 .stream = stream});
}

ncclResult_t ncclScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                         int root, ncclComm_t communicator, cudaStream_t stream) {
    return call({.kind = OperationKind::Scatter,
                 .from = static_cast<const char*>(from),
                 .to = static_cast<char*>(to),
                 .count = count,
                 .type = type,
                 .peer = root,
                 .communicator = communicator,
                 .stream = stream});
}

ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
    return call({.kind = OperationKind::Send,
                 .from = static_cast<const char*>(from),
                 .count = count,
                 .type = type,
                 .peer = peer,
                 .communicator = communicator,
                 .stream = stream});
}

ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
    return call({.kind = OperationKind::Receive,
                 .to = static_cast<char*>(to),
                 .count = count,
                 .type = type,
                 .peer = peer,
                 .communicator = communicator,
                 .stream = stream});
}
}
