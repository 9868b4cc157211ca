#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/os/unique_fd.hpp"

namespace ddprun::worker {

/// The descriptors that this process has open.
[[nodiscard]] std::set<int> open_descriptors();

/// How long operations may go on after a connection has ended. They read what the peer sent before,
/// or fail by themselves, within milliseconds; those that are left would wait for their time-out.
constexpr std::chrono::seconds kLossGrace{1};

/// Watches, on a thread of its own, the TCP connections that a library has made to the other ranks.
/// Gloo has an operation wait for its time-out if the peer dies while the operation is written;
/// here the end of a connection is noticed, and after kLossGrace all are cut, so that every other
/// rank notices, too.
///
/// It holds duplicates: a connection that the library closes ends only with this object or cut().
/// Where the process may have no more descriptors, the rest is not watched.
class PeerWatch {
public:
    /// Watches those that this process has open now, that are connected TCP sockets, and that are
    /// not in `before`. `on_lost` is called at most once, on the watching thread, after the cut,
    /// with a text that names the peer.
    PeerWatch(const std::set<int>& before, std::function<void(const std::string&)> on_lost);
    ~PeerWatch();
    PeerWatch(const PeerWatch&) = delete;
    PeerWatch& operator=(const PeerWatch&) = delete;

    /// Ends every connection in both directions. From any thread.
    void cut();

    /// The end of a connection is no news any more: the ranks leave. From any thread.
    void stand_down() { is_standing_down_ = true; }

private:
    struct Connection {
        UniqueFd fd;
        std::string peer;
    };

    void watch();

    std::vector<Connection> connections_;
    std::function<void(const std::string&)> on_lost_;
    std::atomic<bool> is_standing_down_ = false;
    UniqueFd events_;
    UniqueFd wake_;
    std::thread thread_;
};

}  // namespace ddprun::worker
