#include "tests/fake_gpu/nccl/communicator.hpp"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/fake_gpu/cudart/errors.hpp"
#include "tests/fake_gpu/machine/settings.hpp"
#include "tests/fake_gpu/nccl/ras.hpp"

namespace fake_gpu {

namespace {

/// How long a rank waits before it looks whether a peer died; a bell ends the wait sooner.
constexpr std::chrono::milliseconds kLook{20};

std::mutex refusal_mutex;
std::string& refusal() {
    // The text is never destroyed: threads outlive main().
    static std::string& text = *std::make_unique<std::string>().release();
    return text;
}

}  // namespace

ncclResult_t refuse(ncclResult_t code, const std::string& why) {
    const std::lock_guard lock(refusal_mutex);
    refusal() = why;
    return code;
}

std::string last_refusal() {
    const std::lock_guard lock(refusal_mutex);
    return refusal();
}

}  // namespace fake_gpu

using fake_gpu::Bell;
using fake_gpu::Fault;
using fake_gpu::FaultKind;
using fake_gpu::kLook;
using fake_gpu::Meeting;
using fake_gpu::Member;
using fake_gpu::OperationKind;
using fake_gpu::refuse;
using fake_gpu::settings;

ncclComm* ncclComm::make(Place place, bool is_blocking) {
    const std::shared_ptr<ncclComm> made(
        std::unique_ptr<ncclComm>(new ncclComm(std::move(place), is_blocking)));  // tidy: allow new
    made->self_ = made;
    return made.get();
}

ncclComm::ncclComm(Place place, bool is_blocking)
    : place_(std::move(place)), is_blocking_(is_blocking) {
    pidfds_.fill(-1);
    (void)cudaGetDevice(&device_);
}

ncclComm::~ncclComm() {
    for (const int fd : pidfds_) {
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    if (meeting_ != nullptr) {
        (void)munmap(meeting_, meeting_bytes_);
    }
}

Bell& ncclComm::own_bell() {
    return meeting_ == nullptr ? private_bell_ : member(rank()).bell;
}

Member& ncclComm::member(int rank) const {
    return meeting_->members.at(static_cast<std::size_t>(rank));
}

ncclResult_t ncclComm::connect() {
    const Fault fault = fake_gpu::next_fault_of_init();
    switch (fault.kind) {
        case FaultKind::Refuse:
        case FaultKind::Error:
            set_async_error(ncclSystemError, "fake GPU: no connection to the other ranks");
            return refuse(ncclSystemError, last_error());
        case FaultKind::Die:
            (void)raise(SIGKILL);
            break;
        case FaultKind::Hang:
            wait_for_abort();
            break;
        case FaultKind::Slow:
            pause(fault.time);
            break;
        case FaultKind::Break:
            pause(fault.time);
            cudaFakeGpuBreak();
            break;
        case FaultKind::None:
            break;
    }
    for (const auto step :
         {&ncclComm::map_meeting, &ncclComm::arrive, &ncclComm::refuse_shared_gpus}) {
        if (is_aborted_) {
            return refuse(ncclInternalError, "fake GPU: aborted while it connects");
        }
        if (const ncclResult_t result = (this->*step)(); result != ncclSuccess) {
            return result;
        }
    }
    is_connected_ = true;
    fake_gpu::show_to_ras(shared_from_this());
    return ncclSuccess;
}

ncclResult_t ncclComm::map_meeting() {
    constexpr mode_t kOwnerOnly = 0600;
    if (size() > fake_gpu::kMostRanks) {
        return refuse(ncclInvalidArgument, "fake GPU: too many ranks");
    }
    const std::string path = settings().state_folder + "/nccl-" + id();
    meeting_bytes_ = Meeting::bytes(size());
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kOwnerOnly);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(meeting_bytes_)) != 0) {
        return refuse(ncclSystemError, "fake GPU: cannot make " + path);
    }
    void* const mapped = mmap(nullptr, meeting_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (mapped == MAP_FAILED) {
        return refuse(ncclSystemError, "fake GPU: cannot map " + path);
    }
    const std::lock_guard lock(mutex_);
    meeting_ = static_cast<Meeting*>(mapped);
    return ncclSuccess;
}

/// Returns when all ranks have come: then every process is known, and the file needs no name.
ncclResult_t ncclComm::arrive() {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device_) != cudaSuccess) {
        return refuse(ncclUnhandledCudaError, "fake GPU: no device");
    }
    const char* const host = std::getenv("NCCL_HOSTID");
    Member& mine = member(rank());
    mine.pci_bus = static_cast<unsigned>(properties.pciBusID);
    (void)std::snprintf(mine.node.data(), mine.node.size(), "%s",
                        host != nullptr ? host : settings().node.c_str());
    mine.pid = getpid();
    ++meeting_->arrived;
    for (Member& member : meeting_->members) {
        fake_gpu::ring_bell(member.bell);
    }
    for (;;) {
        const std::uint32_t heard = own_bell();
        if (meeting_->arrived >= size()) {
            break;
        }
        if (is_aborted_) {
            return refuse(ncclInternalError, "fake GPU: aborted while it connects");
        }
        fake_gpu::wait_for_bell(own_bell(), heard, kLook);
    }
    for (std::size_t peer = 0; peer < static_cast<std::size_t>(size()); ++peer) {
        pidfds_.at(peer) =
            static_cast<int>(syscall(SYS_pidfd_open, meeting_->members.at(peer).pid.load(), 0));
    }
    if (++meeting_->mapped == size()) {
        (void)unlink((settings().state_folder + "/nccl-" + id()).c_str());
    }
    return ncclSuccess;
}

ncclResult_t ncclComm::refuse_shared_gpus() {
    const Member& mine = member(rank());
    for (int peer = 0; peer < size(); ++peer) {
        const Member& other = member(peer);
        if (peer == rank() || other.pci_bus != mine.pci_bus || other.node != mine.node) {
            continue;
        }
        std::array<char, 128> text{};
        (void)std::snprintf(text.data(), text.size(),
                            "Duplicate GPU detected : rank %d and rank %d both on CUDA device "
                            "%x000",
                            rank(), peer, mine.pci_bus);
        set_async_error(ncclInvalidUsage, text.data());
        return refuse(ncclInvalidUsage, text.data());
    }
    return ncclSuccess;
}

/// A zombie is dead: its connections are closed.
bool ncclComm::is_dead(int peer) const {
    const int fd = pidfds_.at(static_cast<std::size_t>(peer));
    pollfd end{.fd = fd, .events = POLLIN, .revents = 0};
    return fd < 0 || poll(&end, 1, 0) == 1;
}

void ncclComm::note_dead_peers(const std::vector<Transfer>& transfers) {
    if (!settings().is_death_noticed || async_error_ != ncclSuccess) {
        return;
    }
    for (const Transfer& transfer : transfers) {
        if (transfer.left > 0 && is_dead(transfer.peer)) {
            set_async_error(ncclRemoteError, "fake GPU: rank " + std::to_string(transfer.peer) +
                                                 " has closed its connection");
            return;
        }
    }
}

bool ncclComm::move_bytes(Transfer& transfer, fake_gpu::Ring& ring) {
    const bool is_send = transfer.direction == Transfer::Direction::Send;
    const std::uint64_t written = ring.written.load(std::memory_order_acquire);
    const std::uint64_t read = ring.read.load(std::memory_order_acquire);
    const std::uint64_t room = is_send ? fake_gpu::kRingBytes - (written - read) : written - read;
    const std::uint64_t place = (is_send ? written : read) % fake_gpu::kRingBytes;
    const std::size_t count =
        std::min<std::uint64_t>({room, transfer.left, fake_gpu::kRingBytes - place});
    if (count == 0) {
        return false;
    }
    if (is_send) {
        std::memcpy(ring.bytes.data() + place, transfer.at, count);
        ring.written.store(written + count, std::memory_order_release);
    } else {
        std::memcpy(transfer.at, ring.bytes.data() + place, count);
        ring.read.store(read + count, std::memory_order_release);
    }
    transfer.at += count;
    transfer.left -= count;
    fake_gpu::ring_bell(member(transfer.peer).bell);
    return true;
}

/// Moves bytes of the first transfer to each peer, and of the first transfer from each peer.
ncclComm::Progress ncclComm::make_progress(Channel channel, std::vector<Transfer>& transfers) {
    Progress progress;
    std::array<std::array<bool, fake_gpu::kMostRanks>, 2> is_taken{};
    for (Transfer& transfer : transfers) {
        const bool is_send = transfer.direction == Transfer::Direction::Send;
        fake_gpu::Ring& ring = is_send ? meeting_->ring(channel, size(), rank(), transfer.peer)
                                       : meeting_->ring(channel, size(), transfer.peer, rank());
        const bool is_over = transfer.left == 0 && (!transfer.waits_for_reader ||
                                                    ring.read.load() == ring.written.load());
        if (is_over) {
            continue;
        }
        progress.is_over = false;
        bool& is_first_taken =
            is_taken.at(is_send ? 0 : 1).at(static_cast<std::size_t>(transfer.peer));
        if (!std::exchange(is_first_taken, true)) {
            progress.has_moved |= move_bytes(transfer, ring);
        }
    }
    return progress;
}

bool ncclComm::exchange(Channel channel, std::vector<Transfer> transfers) {
    for (;;) {
        const std::uint32_t heard = own_bell();
        const Progress progress = make_progress(channel, transfers);
        if (progress.is_over) {
            return true;
        }
        if (is_aborted_) {
            return false;
        }
        if (!progress.has_moved) {
            fake_gpu::wait_for_bell(own_bell(), heard, kLook);
            note_dead_peers(transfers);
        }
    }
}

void ncclComm::abort() {
    std::unique_lock lock(mutex_);
    is_aborted_ = true;
    fake_gpu::ring_bell(own_bell());
    changed_.notify_all();
    changed_.wait(lock, [this] { return running_ == 0; });
}

void ncclComm::drain() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return running_ == 0 && (is_aborted_ || turn_ == next_ticket_); });
}

std::uint64_t ncclComm::take_ticket() {
    const std::lock_guard lock(mutex_);
    return next_ticket_++;
}

bool ncclComm::begin_turn(std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_aborted_ || turn_ == ticket; });
    ++running_;
    return !is_aborted_;
}

void ncclComm::count_launch(OperationKind kind) {
    ++member(rank()).launched.at(static_cast<std::size_t>(kind));
}

std::uint64_t ncclComm::launched(int rank, OperationKind kind) const {
    return member(rank).launched.at(static_cast<std::size_t>(kind));
}

int ncclComm::process_of(int rank) const {
    return member(rank).pid;
}

void ncclComm::end_turn() {
    const std::lock_guard lock(mutex_);
    ++turn_;
    --running_;
    changed_.notify_all();
}

void ncclComm::pause(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (!is_aborted_ && std::chrono::steady_clock::now() < end) {
        fake_gpu::wait_for_bell(own_bell(), own_bell(), std::min(time, kLook));
    }
}

void ncclComm::wait_for_abort() {
    while (!is_aborted_) {
        fake_gpu::wait_for_bell(own_bell(), own_bell(), kLook);
    }
}

void ncclComm::run_aside(std::function<ncclResult_t()> job) {
    async_error_ = ncclInProgress;
    {
        const std::lock_guard lock(mutex_);
        ++running_;
    }
    std::thread([self = shared_from_this(), job = std::move(job)] {
        (void)cudaSetDevice(self->device_);
        const ncclResult_t result = job();
        const std::lock_guard lock(self->mutex_);
        self->async_error_ = result;
        --self->running_;
        self->changed_.notify_all();
    }).detach();
}

void ncclComm::set_async_error(ncclResult_t code, const std::string& why) {
    {
        const std::lock_guard lock(mutex_);
        last_error_ = why;
    }
    // While the communicator connects, the result of connecting is the answer.
    if (!is_in_progress()) {
        async_error_ = code;
    }
    (void)refuse(code, why);
}

ncclResult_t ncclComm::accept_call(std::size_t kind) {
    const std::lock_guard lock(mutex_);
    if (is_blocking_ || !kinds_.insert(kind).second) {
        return ncclSuccess;
    }
    has_accepted_ = true;
    return ncclInProgress;
}

ncclResult_t ncclComm::async_error() {
    const ncclResult_t error = async_error_;
    return error == ncclSuccess && has_accepted_.exchange(false) ? ncclInProgress : error;
}

std::string ncclComm::last_error() {
    const std::lock_guard lock(mutex_);
    return last_error_;
}

ncclRedOp_t ncclComm::add_scalar(fake_gpu::Scalar scalar) {
    const std::lock_guard lock(mutex_);
    scalars_.push_back(std::move(scalar));
    return static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(scalars_.size()) - 1);
}

fake_gpu::Scalar ncclComm::scalar_of(int operation) {
    const std::lock_guard lock(mutex_);
    return scalars_.at(static_cast<std::size_t>(operation - ncclNumOps));
}
