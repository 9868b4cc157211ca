// One rank of the tests of the fake GPU that need no LibTorch: `bare_peer SCENARIO FOLDER`. The
// program calls CUDA's runtime and NCCL itself. It reads its place from RANK, LOCAL_RANK,
// WORLD_SIZE and TORCHELASTIC_RESTART_COUNT. It prints each event on a line of its own. When a
// check fails, the program prints a line that begins with "wrong:" and exits 1.

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <nccl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/fake_gpu/cudart/work_note.hpp"
#include "tests/support/rank.hpp"

namespace {

using ddprun::test::hang;
using ddprun::test::number;
using ddprun::test::require;
using ddprun::test::say;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{10};  ///< between two looks of a rank that waits

struct Place {
    std::string folder;  ///< what the ranks share
    int rank = number("RANK");
    int local_rank = number("LOCAL_RANK");
    int size = number("WORLD_SIZE");
    int restarts = number("TORCHELASTIC_RESTART_COUNT");
};

void require_cuda(cudaError_t error) {
    require(error == cudaSuccess, cudaGetErrorString(error));
}

void require_nccl(ncclResult_t result) {
    require(result == ncclSuccess, ncclGetErrorString(result));
}

/// Waits for a byte. Returns whether one came, or the writer has ended.
bool is_told_within(std::chrono::milliseconds time, int fd) {
    pollfd order{.fd = fd, .events = POLLIN, .revents = 0};
    char byte = 0;
    return poll(&order, 1, static_cast<int>(time.count())) == 1 && read(fd, &byte, 1) >= 0;
}

/// Opens a FIFO in the folder of the ranks, once both of its ends are open.
int open_fifo(const std::string& path, int mode) {
    constexpr mode_t kOwnerOnly = 0600;
    (void)mkfifo(path.c_str(), kOwnerOnly);  // the other end, or the test, may have made it
    const int fd = open(path.c_str(), mode | O_CLOEXEC);
    require(fd >= 0, path + " cannot be opened");
    return fd;
}

/// Returns the id of this generation's communicator. Rank 0 makes it, and writes it into a FIFO for
/// each other rank.
ncclUniqueId exchange_id(const Place& place) {
    const auto path_for = [&place](int rank) {
        return fmt::format("{}/id-{}-{}", place.folder, place.restarts, rank);
    };
    ncclUniqueId id;
    if (place.rank != 0) {
        const int fd = open_fifo(path_for(place.rank), O_RDONLY);
        require(read(fd, &id, sizeof id) == sizeof id, "rank 0 has sent no id");
        (void)close(fd);
        return id;
    }
    require_nccl(ncclGetUniqueId(&id));
    for (int rank = 1; rank < place.size; ++rank) {
        const int fd = open_fifo(path_for(rank), O_WRONLY);
        require(write(fd, &id, sizeof id) == sizeof id, "the id cannot be sent");
        (void)close(fd);
    }
    return id;
}

ncclComm_t connect(const Place& place) {
    ncclComm_t communicator = nullptr;
    const ncclResult_t result =
        ncclCommInitRank(&communicator, place.size, exchange_id(place), place.rank);
    if (result != ncclSuccess) {
        say(fmt::format("not connected: {}", ncclGetErrorString(result)));
        std::_Exit(3);
    }
    say("connected");
    return communicator;
}

/// Numbers in the memory of a GPU.
template <typename T>
class Numbers {
public:
    explicit Numbers(const std::vector<T>& values) : count_(values.size()) {
        void* start = nullptr;
        require_cuda(cudaMalloc(&start, bytes()));
        start_ = static_cast<T*>(start);
        require_cuda(cudaMemcpy(start_, values.data(), bytes(), cudaMemcpyHostToDevice));
    }
    explicit Numbers(std::size_t count) : Numbers(std::vector<T>(count)) {}
    ~Numbers() { (void)cudaFree(start_); }
    Numbers(const Numbers&) = delete;
    Numbers& operator=(const Numbers&) = delete;

    [[nodiscard]] T* at() const { return start_; }
    [[nodiscard]] std::size_t size() const { return count_; }
    [[nodiscard]] std::vector<T> read() const {
        std::vector<T> values(count_);
        require_cuda(cudaMemcpy(values.data(), start_, bytes(), cudaMemcpyDeviceToHost));
        return values;
    }

private:
    [[nodiscard]] std::size_t bytes() const { return count_ * sizeof(T); }

    std::size_t count_;
    T* start_ = nullptr;
};

/// The collectives of one type, each on parts of kMany numbers, which do not fit into a ring at
/// once. NCCL orders them and the copies on the default stream.
template <typename T>
class Collectives {
public:
    Collectives(const Place& place, ncclComm_t communicator, ncclDataType_t type)
        : communicator_(communicator), type_(type), rank_(place.rank), size_(place.size) {}

    void check_reductions() const {
        const Numbers<T> mine(part(rank_));
        const Numbers<T> result(kMany);
        const int sum = size_ * (size_ - 1) / 2;
        require_nccl(
            ncclAllReduce(mine.at(), result.at(), kMany, type_, ncclSum, communicator_, nullptr));
        require_equal(result, part(sum, size_), "a sum");
        require_nccl(
            ncclAllReduce(mine.at(), result.at(), kMany, type_, ncclMax, communicator_, nullptr));
        require_equal(result, part(size_ - 1), "a maximum");
        const Numbers<T> rows(parts(rank_));
        require_nccl(ncclReduceScatter(rows.at(), result.at(), kMany, type_, ncclSum, communicator_,
                                       nullptr));
        require_equal(result, part(sum + size_ * rank_, size_), "a reduce-scatter");
    }

    void check_movements() const {
        const Numbers<T> mine(part(rank_));
        const Numbers<T> result(kMany);
        const int last = size_ - 1;
        require_nccl(
            ncclBroadcast(mine.at(), result.at(), kMany, type_, last, communicator_, nullptr));
        require_equal(result, part(last), "a broadcast");
        const Numbers<T> rows(kMany * static_cast<std::size_t>(size_));
        require_nccl(ncclAllGather(mine.at(), rows.at(), kMany, type_, communicator_, nullptr));
        require_equal(rows, parts(0), "an all-gather");
        // The ranks send around in a circle: a send that waits for its receive would wait for ever.
        const int before = (rank_ + last) % size_;
        require_nccl(ncclGroupStart());
        require_nccl(
            ncclSend(mine.at(), kMany, type_, (rank_ + 1) % size_, communicator_, nullptr));
        require_nccl(ncclRecv(result.at(), kMany, type_, before, communicator_, nullptr));
        require_nccl(ncclGroupEnd());
        require_equal(result, part(before), "a circle of sends");
    }

private:
    static constexpr std::size_t kMany = 100'000;

    /// Neighbours differ, so that a byte in a wrong place is found.
    static std::vector<T> part(int first, int step = 1) {
        constexpr std::size_t kPeriod = 3;
        std::vector<T> values(kMany);
        for (std::size_t i = 0; i < kMany; ++i) {
            values[i] = static_cast<T>(first + step * static_cast<int>(i % kPeriod));
        }
        return values;
    }

    /// The parts of all ranks one behind the other, of which the first begins with `first`.
    [[nodiscard]] std::vector<T> parts(int first) const {
        std::vector<T> all;
        for (int rank = 0; rank < size_; ++rank) {
            const std::vector<T> next = part(first + rank);
            all.insert(all.end(), next.begin(), next.end());
        }
        return all;
    }

    void require_equal(const Numbers<T>& numbers, const std::vector<T>& wanted,
                       const std::string& what) const {
        require(numbers.read() == wanted,
                fmt::format("{} of NCCL's type {} is wrong", what, static_cast<int>(type_)));
    }

    ncclComm_t communicator_;
    ncclDataType_t type_;
    int rank_;
    int size_;
};

template <typename T>
void check_collectives(const Place& place, ncclComm_t communicator, ncclDataType_t type) {
    const Collectives<T> collectives(place, communicator, type);
    collectives.check_reductions();
    collectives.check_movements();
}

int collectives(const Place& place) {
    ncclComm_t communicator = connect(place);
    check_collectives<std::uint8_t>(place, communicator, ncclUint8);
    check_collectives<std::int64_t>(place, communicator, ncclInt64);
    check_collectives<float>(place, communicator, ncclFloat32);
    check_collectives<double>(place, communicator, ncclFloat64);
    require_nccl(ncclCommDestroy(communicator));
    say("right");
    return 0;
}

/// Waits for the default stream as programs do that call NCCL themselves: they ask the stream and
/// the communicator again and again. After an error, and at an order on stdin, the rank aborts the
/// communicator. Returns an empty text when the stream has ended without an error.
std::string wait_for_stream(ncclComm_t communicator) {
    for (;;) {
        const cudaError_t state = cudaStreamQuery(nullptr);
        if (state != cudaErrorNotReady) {
            return state == cudaSuccess ? "" : cudaGetErrorString(state);
        }
        ncclResult_t error = ncclSuccess;
        require_nccl(ncclCommGetAsyncError(communicator, &error));
        const bool is_told = is_told_within(kLook, STDIN_FILENO);
        if (error != ncclSuccess || is_told) {
            require_nccl(ncclCommAbort(communicator));
            require_cuda(cudaStreamSynchronize(nullptr));
            return error == ncclSuccess ? "aborted" : ncclGetErrorString(error);
        }
    }
}

Numbers<float> make_summand(const Place& place) {
    return Numbers<float>(std::vector<float>(4, static_cast<float>(place.rank + 1)));
}

ncclResult_t launch_sum(const Numbers<float>& numbers, ncclComm_t communicator) {
    return ncclAllReduce(numbers.at(), numbers.at(), numbers.size(), ncclFloat32, ncclSum,
                         communicator, nullptr);
}

/// Returns an empty text when the sum is right, else its error.
std::string add_up(const Place& place, ncclComm_t communicator) {
    const Numbers<float> numbers = make_summand(place);
    if (const ncclResult_t result = launch_sum(numbers, communicator); result != ncclSuccess) {
        return ncclGetErrorString(result);
    }
    std::string error = wait_for_stream(communicator);
    if (error.empty()) {
        const auto sum = static_cast<float>(place.size * (place.size + 1) / 2);
        require(numbers.read() == std::vector<float>(numbers.size(), sum), "a sum is wrong");
    }
    return error;
}

/// Sums run one after another, until one fails.
int sums(const Place& place) {
    constexpr int kSums = 5;
    ncclComm_t communicator = connect(place);
    for (int i = 0; i < kSums; ++i) {
        const auto begun = Clock::now();
        const std::string error = add_up(place, communicator);
        if (!error.empty()) {
            say(fmt::format("sum {} has failed: {}", i, error));
            say(fmt::format("the GPU then: {}", cudaGetErrorString(cudaDeviceSynchronize())));
            return 4;
        }
        const auto time = std::chrono::floor<std::chrono::milliseconds>(Clock::now() - begun);
        say(fmt::format("sum {} after {} ms", i, time.count()));
    }
    require_nccl(ncclCommDestroy(communicator));
    return 0;
}

/// ncclCommAbort() ends an initialisation that hangs.
int abort_init(const Place& place) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t communicator = nullptr;
    require(ncclCommInitRankConfig(&communicator, place.size, exchange_id(place), place.rank,
                                   &config) == ncclInProgress,
            "the call has waited");
    say("connecting");
    (void)std::getchar();
    ncclResult_t state = ncclSuccess;
    require_nccl(ncclCommGetAsyncError(communicator, &state));
    require(state == ncclInProgress, "it is no longer connecting");
    require_nccl(ncclCommAbort(communicator));
    require_nccl(ncclCommAbort(nullptr));  // LibTorch aborts a second time
    say("aborted");
    return 0;
}

/// Computes until the test writes a byte into the FIFO "go". A kernel cannot be launched: the work
/// is only noted.
void work(const Place& place, int device) {
    const int go = open_fifo(place.folder + "/go", O_RDONLY);
    do {
        cudaFakeGpuNoteWork(device);
    } while (!is_told_within(kLook, go));
    (void)close(go);
}

/// In the first generation rank 0 launches a sum that the others do not launch, and waits for it
/// inside of CUDA. Later generations end.
int behind(const Place& place) {
    ncclComm_t communicator = connect(place);
    int device = 0;
    require_cuda(cudaGetDevice(&device));
    const Numbers<float> numbers = make_summand(place);
    require_nccl(launch_sum(numbers, communicator));
    require_cuda(cudaDeviceSynchronize());
    work(place, device);
    if (place.restarts > 0) {
        return 0;
    }
    if (place.rank == 0) {
        require_nccl(launch_sum(numbers, communicator));
    }
    say(fmt::format("rank {} has computed", place.rank));
    require_cuda(cudaDeviceSynchronize());
    hang();
}

/// Holds memory, and computes once when the test orders it by a line on stdin.
int hold(const Place& /*place*/) {
    constexpr std::size_t kBytes = 64 << 20;
    void* start = nullptr;
    int device = 0;
    require_cuda(cudaMalloc(&start, kBytes));
    require_cuda(cudaGetDevice(&device));
    say("holding");
    (void)std::getchar();
    cudaFakeGpuNoteWork(device);
    say("has computed");
    hang();
}

int where(const Place& place) {
    std::array<char, 32> bus_id{};
    int device = 0;
    require_cuda(cudaGetDevice(&device));
    require_cuda(cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), device));
    say(fmt::format("rank {} of {} is on {}", place.rank, place.size, bus_id.data()));
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, std::function<int(const Place&)>> scenarios = {
        {"abort_init", abort_init},
        {"behind", behind},
        {"collectives", collectives},
        {"hold", hold},
        {"sums", sums},
        {"where", where}};
    require(argc == 3 && scenarios.contains(argv[1]), "usage: bare_peer SCENARIO FOLDER");
    const Place place{.folder = argv[2]};
    int gpus = 0;
    require_cuda(cudaGetDeviceCount(&gpus));
    require_cuda(cudaSetDevice(gpus == 1 ? 0 : place.local_rank));
    return scenarios.at(argv[1])(place);
}
