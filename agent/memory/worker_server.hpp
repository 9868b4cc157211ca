#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/memory/buffers.hpp"
#include "base/memory_limits.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "worker_runtime/memory/protocol.hpp"

namespace ddprun::agent {

/// Serves the workers of this node: takes their requests (worker_runtime/memory/protocol.hpp) and
/// answers each. Decides nothing: CheckpointShelf does. A process of another user is turned away,
/// and a worker that sends anything but one request at a time is closed. One thread; outlives the
/// loop's run.
class WorkerServer {
public:
    /// The way to the programs of other nodes. Without it no endpoint is told, and no file copied.
    struct OtherNodes {
        std::string endpoint;  ///< of this program; empty: it serves no other node
        /// Has the program at `partner` copy files that this node's `rank` has written. `done` is
        /// called once, with why it has not; empty: it has.
        std::function<void(const std::string& partner, const StepKey& key, Rank rank,
                           std::vector<worker::MemoryFile> files,
                           std::function<void(std::string note)> done)>
            replicate = {};
        /// Copies a file from the program at `endpoint`. `done` is called once.
        std::function<void(const std::string& endpoint, const StepKey& key, worker::MemoryFile file,
                           std::function<void(Result<void>)> done)>
            fetch = {};
    };

    /// `listener` is a listening SOCK_SEQPACKET socket.
    WorkerServer(boost::asio::io_context& io, const MemoryLimits& limits, UniqueFd listener,
                 KeptCheckpoints& kept, OtherNodes others);
    WorkerServer(const WorkerServer&) = delete;
    WorkerServer& operator=(const WorkerServer&) = delete;

    void start();

private:
    /// One worker's connection.
    struct Session {
        explicit Session(boost::asio::io_context& io) : socket(io) {}

        boost::asio::posix::stream_descriptor socket;
        bool is_greeted = false;
        ShelfOwner owner;
        Generation generation;
        std::string partner;  ///< endpoint; empty: none
    };
    using SessionId = std::uint64_t;

    void await_workers();
    void accept_workers();
    void admit(UniqueFd socket);
    void listen_to(SessionId id);
    void take_request(SessionId id);
    void serve(SessionId id, const worker::MemoryRequest& request);
    void greet(SessionId id, const worker::MemoryRequest& request);
    void begin(SessionId id, const worker::MemoryRequest& request);
    void written(SessionId id, const worker::MemoryRequest& request);
    void seal(SessionId id, const worker::MemoryRequest& request);
    void open(SessionId id, const worker::MemoryRequest& request);
    void fetch(SessionId id, const worker::MemoryRequest& request);
    void reply(SessionId id, const worker::MemoryReply& reply,
               const std::vector<UniqueFd>& descriptors = {});
    void reply(SessionId id, const Result<void>& result);
    void end(SessionId id);

    boost::asio::io_context& io_;
    const MemoryLimits limits_;
    boost::asio::posix::stream_descriptor listener_;
    boost::asio::steady_timer pause_;  ///< of accepting, when no descriptor is left
    KeptCheckpoints& kept_;
    const OtherNodes others_;
    std::optional<std::string> series_;  ///< the only one that is kept: that of the first worker
    std::map<SessionId, Session> sessions_;
    SessionId last_session_ = 0;
};

}  // namespace ddprun::agent
