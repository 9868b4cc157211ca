#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/os/unique_fd.hpp"
#include "base/runtime_limits.hpp"

struct sockaddr_storage;

namespace ddprun::worker {

class PeerWatch;

/// Ends the waits for other ranks once one of them is lost, whatever the engine below does, and
/// cuts the groups that depend on this one. From any thread.
///
/// An engine that is aborted may say of its work that it is done, and what a GPU computes from then
/// on may be anything. So the loss is known before an engine is aborted: a result that was read to
/// the CPU is good if no rank is lost afterwards.
class Loss : public std::enable_shared_from_this<Loss> {
public:
    using Future = c10::ivalue::Future;

    explicit Loss(const RuntimeLimits& limits = {}) : limits_(limits) {}

    /// Has `explain` add the rank to what an engine says of a failure: an engine knows addresses at
    /// best. To be called before the first operation.
    void explain_by(std::function<std::string(const std::string& failure)> explain) {
        explain_ = std::move(explain);
    }

    /// Becomes what `inner` becomes, or an error once a rank is lost. An error of `inner` is
    /// explained.
    [[nodiscard]] c10::intrusive_ptr<Future> unless_lost(const c10::intrusive_ptr<Future>& inner);

    /// Calls `interrupt` when a rank is lost, at once if one is already, until the guard ends. It
    /// must not call anything here.
    class [[nodiscard]] Guard {
    public:
        Guard(Loss& loss, std::function<void()> interrupt);
        ~Guard();
        Guard(const Guard&) = delete;
        Guard& operator=(const Guard&) = delete;

    private:
        Loss& loss_;
        std::map<const Guard*, std::function<void()>>::iterator place_;
    };

    /// Throws if find() finds that a rank is lost.
    void check();
    /// True if a rank is lost. Asks the engines, too: c10d aborts one that has reported an error,
    /// so then a rank is lost as well.
    [[nodiscard]] bool find();
    /// True if find() has found a loss before; no engine is asked.
    [[nodiscard]] bool is_lost() const { return is_lost_; }

    /// Aborts `engine` once a rank is lost, at once if one is already: by that end the waits that
    /// it knows of alone, say those of a GPU. On a detached thread: an abort may hang.
    void abort_when_lost(c10::intrusive_ptr<c10d::Backend> engine);

    /// Cuts `part`, too, when a rank is lost.
    void carry_on_to(const std::shared_ptr<PeerWatch>& part);

    /// A rank is lost. Only the first call counts: it ends the waits, and begins to abort all
    /// engines, those of the parts too. It does not wait for the aborts.
    void begin_to_lose(const std::string& what);

    /// The same, and each call waits until all engines are aborted, RuntimeLimits::abort_wait at
    /// most. A call from within a loss that is being told (by a callback, by an abort) does not
    /// wait.
    void lose(const std::string& what);

private:
    c10::intrusive_ptr<Future> take(const Future* key);
    [[nodiscard]] std::exception_ptr explained(const std::exception_ptr& failure) const;
    void abort_aside(std::function<void()> abort);
    void wait_for_aborts();

    RuntimeLimits limits_;
    std::function<std::string(const std::string&)> explain_ = [](const std::string& failure) {
        return failure;
    };
    std::atomic<bool> is_lost_ = false;
    mutable std::mutex mutex_;
    std::multiset<std::thread::id> tellers_;  ///< threads in begin_to_lose() or in an abort
    std::size_t left_ = 0;                    ///< what of the first call has not ended yet
    std::condition_variable ended_;
    std::exception_ptr error_;
    std::map<const Future*, c10::intrusive_ptr<Future>> pending_;
    std::map<const Guard*, std::function<void()>> interrupts_;
    std::vector<std::weak_ptr<PeerWatch>> parts_;
    std::vector<c10::intrusive_ptr<c10d::Backend>> engines_;
};

/// "address:port", with an IPv6 address in brackets; none for other families.
[[nodiscard]] std::optional<std::string> address_text(const sockaddr_storage& address);

/// The connections of a group: the rank at the other end, by the addresses of both ends as
/// address_text() has them, this rank's first.
using GroupConnections = std::map<std::pair<std::string, std::string>, int>;

/// Watches, on a thread of its own, the TCP connections that a library has made to the other ranks.
/// Gloo has an operation wait for its time-out if the peer dies while the operation is written;
/// here the end of a connection is noticed, and after RuntimeLimits::loss_grace all are cut, so
/// that every other rank notices, too.
///
/// It holds duplicates: a connection that the library closes ends only with this object or cut().
/// The process's limit of open files is raised for them, so that the program has left
/// RuntimeLimits::descriptors_left. If the hard limit has no room for both, the program keeps half
/// of what can still be opened, and connections without room are not watched.
class PeerWatch {
public:
    /// Watches those of `group` that this process has open now. Tells `loss`, after the cut, with a
    /// text that names the peer.
    PeerWatch(const GroupConnections& group, std::shared_ptr<Loss> loss,
              const RuntimeLimits& limits = {});
    ~PeerWatch();
    PeerWatch(const PeerWatch&) = delete;
    PeerWatch& operator=(const PeerWatch&) = delete;

    /// Ends every connection in both directions, and reports the loss: Loss::lose() says when it
    /// returns. From any thread.
    void cut(const std::string& why);

    /// Connections that end from now on are no peer's doing: their owner ends them. From any
    /// thread.
    void expect_cut() { is_cut_ = true; }

    /// The end of a connection is no news any more: the ranks leave. From any thread.
    void stand_down() { is_standing_down_ = true; }

    /// `failure`, behind the name of the rank whose connection had ended before this one was cut,
    /// if there is one. From any thread.
    [[nodiscard]] std::string explained(const std::string& failure) const;

    /// If a connection has ended before a cut, waits RuntimeLimits::notice_wait, so that the other
    /// ranks notice the end of theirs to the same peer. Their errors then name that peer, and not
    /// this rank, which is about to cut. From any thread.
    void let_others_notice() const;

    /// How many connections it watches.
    [[nodiscard]] std::size_t watched() const { return connections_.size(); }

private:
    struct Connection {
        UniqueFd fd;
        std::string peer;
    };

    [[nodiscard]] std::optional<std::string> ended() const;
    void find_connections(const GroupConnections& group);
    void shut_down();
    void watch();

    std::vector<Connection> connections_;
    std::shared_ptr<Loss> loss_;
    RuntimeLimits limits_;
    std::atomic<const Connection*> first_ended_ = nullptr;
    std::atomic<bool> is_cut_ = false;
    std::atomic<bool> is_standing_down_ = false;
    UniqueFd events_;
    UniqueFd wake_;
    std::thread thread_;
};

}  // namespace ddprun::worker
