#pragma once

#include <ATen/core/ivalue.h>

#include <atomic>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "worker_runtime/torch/limits.hpp"

namespace ddprun::worker {

class PeerWatch;

/// Ends the waits for other ranks once one of them is lost, whatever the engine below does, and
/// cuts the groups that depend on this one. From any thread.
class Loss : public std::enable_shared_from_this<Loss> {
public:
    using Future = c10::ivalue::Future;

    /// Becomes what `inner` becomes, or an error once a rank is lost.
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

    /// Throws if a rank is lost.
    void check() const;

    /// Cuts `part`, too, when a rank is lost.
    void carry_on_to(const std::shared_ptr<PeerWatch>& part);

    /// A rank is lost. Only the first call counts.
    void lose(const std::string& what);

private:
    c10::intrusive_ptr<Future> take(const Future* key);

    mutable std::mutex mutex_;
    std::exception_ptr error_;
    std::map<const Future*, c10::intrusive_ptr<Future>> pending_;
    std::map<const Guard*, std::function<void()>> interrupts_;
    std::vector<std::weak_ptr<PeerWatch>> parts_;
};

/// The descriptors that this process has open.
[[nodiscard]] std::set<int> open_descriptors();

/// Watches, on a thread of its own, the TCP connections that a library has made to the other ranks.
/// Gloo has an operation wait for its time-out if the peer dies while the operation is written;
/// here the end of a connection is noticed, and after RuntimeLimits::loss_grace all are cut, so
/// that every other rank notices, too.
///
/// It holds duplicates: a connection that the library closes ends only with this object or cut().
/// Where the process may have no more descriptors, the rest is not watched.
class PeerWatch {
public:
    /// Watches those that this process has open now, that are connected TCP sockets, and that are
    /// not in `before`. Tells `loss`, after the cut, with a text that names the peer.
    PeerWatch(const std::set<int>& before, std::shared_ptr<Loss> loss,
              const RuntimeLimits& limits = {});
    ~PeerWatch();
    PeerWatch(const PeerWatch&) = delete;
    PeerWatch& operator=(const PeerWatch&) = delete;

    /// Ends every connection in both directions, and tells the loss. From any thread.
    void cut(const std::string& why);

    /// The end of a connection is no news any more: the ranks leave. From any thread.
    void stand_down() { is_standing_down_ = true; }

private:
    struct Connection {
        UniqueFd fd;
        std::string peer;
    };

    void watch();

    std::vector<Connection> connections_;
    std::shared_ptr<Loss> loss_;
    RuntimeLimits limits_;
    std::atomic<bool> is_standing_down_ = false;
    UniqueFd events_;
    UniqueFd wake_;
    std::thread thread_;
};

}  // namespace ddprun::worker
