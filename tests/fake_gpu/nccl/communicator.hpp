#pragma once

#include <nccl.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tests/fake_gpu/nccl/faults.hpp"
#include "tests/fake_gpu/nccl/operation_kind.hpp"
#include "tests/fake_gpu/nccl/rings.hpp"

namespace fake_gpu {

/// Keeps the text for ncclGetLastError(), of a call without a communicator, too. Returns `code`.
ncclResult_t refuse(ncclResult_t code, const std::string& why);
[[nodiscard]] std::string last_refusal();

struct Transfer {
    enum class Direction { Send, Receive };
    Direction direction = Direction::Send;
    int peer = 0;
    char* at = nullptr;
    std::size_t left = 0;
    bool waits_for_reader = false;  ///< a send that is over when the peer has received it
};

/// The factor of an ncclRedOp_t that was made by ncclRedOpCreatePreMulSum().
struct Scalar {
    ncclDataType_t type = ncclFloat64;
    std::vector<char> bytes;
};

}  // namespace fake_gpu

/// One rank's end of a communicator. Operations of all streams go one after another, in the order
/// in which they were called: NCCL's documentation asks programs for no more.
struct ncclComm : std::enable_shared_from_this<ncclComm> {
public:
    using Channel = fake_gpu::Channel;
    using Transfer = fake_gpu::Transfer;

    struct Place {
        std::string id;
        int rank = 0;
        int size = 1;
    };

    /// Makes a communicator for the current device. It lives until let_go() was called and its last
    /// operation has ended.
    [[nodiscard]] static ncclComm* make(Place place, bool is_blocking);
    ~ncclComm();
    ncclComm(const ncclComm&) = delete;
    ncclComm& operator=(const ncclComm&) = delete;

    void set_place(Place place) { place_ = std::move(place); }
    [[nodiscard]] const std::string& id() const { return place_.id; }
    [[nodiscard]] int rank() const { return place_.rank; }
    [[nodiscard]] int size() const { return place_.size; }
    [[nodiscard]] int device() const { return device_; }
    [[nodiscard]] bool is_blocking() const { return is_blocking_; }
    [[nodiscard]] bool is_aborted() const { return is_aborted_; }

    /// Waits until all ranks have come, or the communicator is aborted. The death of a peer that is
    /// still missing goes unnoticed.
    ncclResult_t connect();

    /// Moves the bytes of all transfers. Returns false when the communicator is aborted before. If
    /// Settings::is_death_noticed, a peer's death is an asynchronous error, and the wait goes on.
    bool exchange(Channel channel, std::vector<Transfer> transfers);

    /// Ends the waits of all operations and of connect(), and returns when they have ended.
    void abort();

    /// Waits until all operations have run, or the communicator is aborted.
    void drain();
    void let_go() { self_.reset(); }

    /// The facts that RAS reports. All ranks see the counts of all.
    [[nodiscard]] bool is_connected() const { return is_connected_; }
    void count_launch(fake_gpu::OperationKind kind);
    [[nodiscard]] std::uint64_t launched(int rank, fake_gpu::OperationKind kind) const;
    [[nodiscard]] int process_of(int rank) const;

    /// Operations of the communicator run in the order of their tickets.
    [[nodiscard]] std::uint64_t take_ticket();
    /// Waits for the ticket's turn. Returns false when the communicator is aborted. In both cases
    /// the caller calls end_turn().
    [[nodiscard]] bool begin_turn(std::uint64_t ticket);
    void end_turn();

    /// Waits until the time is over, or the communicator is aborted.
    void pause(std::chrono::milliseconds time);
    void wait_for_abort();

    /// Runs `job` on a thread of its own, and has async_error() say ncclInProgress until it ends.
    void run_aside(std::function<ncclResult_t()> job);

    void set_async_error(ncclResult_t code, const std::string& why);
    /// Returns the result of an accepted call. If the communicator does not block, the first call
    /// of each kind, for which NCCL connects channels, has ncclInProgress; so has the next
    /// async_error().
    [[nodiscard]] ncclResult_t accept_call(std::size_t kind);
    [[nodiscard]] ncclResult_t async_error();
    [[nodiscard]] bool is_in_progress() const { return async_error_ == ncclInProgress; }
    [[nodiscard]] std::string last_error();

    /// Counts the communicators that were split or shrunk from this one. The number is part of the
    /// child's id.
    [[nodiscard]] int next_child() { return children_++; }

    [[nodiscard]] ncclRedOp_t add_scalar(fake_gpu::Scalar scalar);
    [[nodiscard]] fake_gpu::Scalar scalar_of(int operation);

private:
    ncclComm(Place place, bool is_blocking);
    ncclResult_t map_meeting();
    ncclResult_t arrive();
    ncclResult_t refuse_shared_gpus();
    [[nodiscard]] fake_gpu::Member& member(int rank) const;
    [[nodiscard]] bool is_dead(int peer) const;
    void note_dead_peers(const std::vector<Transfer>& transfers);
    bool move_bytes(Transfer& transfer, fake_gpu::Ring& ring);
    struct Progress {
        bool is_over = true;
        bool has_moved = false;
    };
    Progress make_progress(Channel channel, std::vector<Transfer>& transfers);
    [[nodiscard]] fake_gpu::Bell& own_bell();

    Place place_;
    int device_ = 0;
    bool is_blocking_ = true;
    std::shared_ptr<ncclComm> self_;
    fake_gpu::Bell private_bell_ = 0;  ///< until there is a meeting
    fake_gpu::Meeting* meeting_ = nullptr;
    std::size_t meeting_bytes_ = 0;
    std::array<int, fake_gpu::kMostRanks> pidfds_;
    std::atomic<bool> is_connected_ = false;
    std::atomic<bool> is_aborted_ = false;
    std::atomic<ncclResult_t> async_error_ = ncclSuccess;
    std::atomic<bool> has_accepted_ = false;
    std::set<std::size_t> kinds_;  ///< of calls so far
    std::atomic<int> children_ = 0;
    std::vector<fake_gpu::Scalar> scalars_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::string last_error_;
    std::uint64_t next_ticket_ = 0;
    std::uint64_t turn_ = 0;
    int running_ = 0;  ///< operations in their turn, and connects aside
};
