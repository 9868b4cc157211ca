#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/memory/buffers.hpp"
#include "agent/memory/peer_messages.hpp"
#include "agent/memory/token_bucket.hpp"
#include "base/memory_limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "rendezvous/transport/connection.hpp"
#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/secret.hpp"
#include "rendezvous/wire/tls_files.hpp"
#include "worker_runtime/checkpoint/hashing.hpp"
#include "worker_runtime/memory/protocol.hpp"

namespace ddprun::agent {

/// TLS between the programs; both contexts, or neither.
struct PeersTls {
    std::shared_ptr<const rdzv::TlsContext> accepting;
    std::shared_ptr<const rdzv::TlsContext> dialling;

    /// Without a file in `files` there are no contexts.
    [[nodiscard]] static Result<PeersTls> of(const rdzv::TlsFiles& files);
};

/// The connections to the ddprun-memory programs of other nodes. Each end proves the job's secret
/// (rendezvous/wire/handshake.hpp), and each frame carries a MAC. With TLS the proof is bound to
/// the connection, and TLS takes the MAC's place. A copy is pulled: the program that wants a file
/// asks for pieces of it, few at a time and only as fast as the bound on bytes per second allows,
/// so that neither end blocks its loop for long. A copy counts once the checksum of the whole file
/// is right. One thread; outlives the loop's run.
class Peers {
public:
    Peers(boost::asio::io_context& io, const MemoryLimits& limits, const JobId& job,
          std::optional<rdzv::JobSecret> secret, PeersTls tls, KeptCheckpoints& kept);
    Peers(const Peers&) = delete;
    Peers& operator=(const Peers&) = delete;

    /// Serves at `listener`, a listening TCP socket. Returns its endpoint.
    [[nodiscard]] Result<std::string> start(UniqueFd listener);

    /// As WorkerServer::OtherNodes says.
    void replicate(const std::string& partner, const StepKey& key, Rank rank,
                   std::vector<worker::MemoryFile> files,
                   std::function<void(std::string note)> done);
    void fetch(const std::string& endpoint, const StepKey& key, worker::MemoryFile file,
               std::function<void(Result<void>)> done);

private:
    using LinkId = std::uint64_t;
    using Done = std::function<void(Result<void>)>;

    struct Piece {
        std::size_t file = 0;  ///< index in Pull::files
        std::uint64_t offset = 0;
    };
    /// Files that are being copied to here.
    struct Pull {
        std::uint64_t number = 0;
        ShelfOwner owner;
        StepKey key;
        std::vector<worker::MemoryFile> files;
        std::vector<BufferId> buffers;
        Piece next_asked;
        Piece next_received;
        std::unique_ptr<worker::Xxh3Hasher> hasher;  ///< of the file that is received
        Done done;
    };
    /// A part of a file that was asked for.
    struct Asked {
        std::uint64_t pull = 0;
        std::uint64_t bytes = 0;
    };
    struct Link {
        LinkId id = 0;
        std::string name;  ///< the endpoint that was dialled; of an accepted one its address
        bool is_dialled = false;
        bool is_open = false;  ///< the handshake is over
        std::unique_ptr<rdzv::Connection> connection;
        std::unique_ptr<DeadlineTimer> deadline;
        Instant last_heard;
        std::deque<std::string> unsent;        ///< until it is open; bounded as offers are
        std::map<std::uint64_t, Done> offers;  ///< ours, by number, that wait for their answer
        std::deque<Pull> pulls;                ///< the first one is under way
        std::deque<Asked> asked;               ///< in the order of the answers
    };

    // Connections.
    boost::asio::awaitable<void> accept_peers();
    boost::asio::awaitable<void> run_dialled(Link& link, boost::asio::ip::tcp::endpoint to);
    boost::asio::awaitable<void> run_accepted(Link& link);
    boost::asio::awaitable<Result<rdzv::SessionKeys>> reach(Link& link,
                                                            boost::asio::ip::tcp::endpoint to);
    boost::asio::awaitable<Result<rdzv::SessionKeys>> welcome(Link& link);
    boost::asio::awaitable<void> carry(Link& link, rdzv::SessionKeys keys);
    [[nodiscard]] JobId job_on(const rdzv::Connection& connection) const;
    [[nodiscard]] Link& add(boost::asio::ip::tcp::socket socket, std::string name);
    [[nodiscard]] bool make_place();
    [[nodiscard]] Result<Link*> link_to(const std::string& endpoint);
    void is_overdue(Link& link);
    void set_deadline(Link& link);
    void send(Link& link, std::string body);
    void end(Link& link, const std::string& why);

    // Messages.
    void take(Link& link, std::string_view body);
    void take(Link& link, PeerOffer& offer);
    void take(Link& link, const PeerDone& done);
    void take(Link& link, const PeerGet& get);
    void take(Link& link, const PeerPiece& piece);
    void take(Link& link, const PeerMissing& missing);

    // Copying to here.
    [[nodiscard]] Result<void> begin_pull(Link& link, const ShelfOwner& owner, const StepKey& key,
                                          std::vector<worker::MemoryFile> files, Done done);
    void ask(Link& link);
    [[nodiscard]] Result<void> store(Pull& pull, std::string_view bytes);
    [[nodiscard]] Result<void> finish_files(Pull& pull);
    void go_on(Link& link, const Result<void>& stored);
    void finish_pull(Link& link, Result<void> result);

    boost::asio::io_context& io_;
    const MemoryLimits limits_;
    const JobId job_;  ///< of the handshake: no rendezvous takes it for its own
    const std::optional<rdzv::JobSecret> secret_;
    const PeersTls tls_;
    KeptCheckpoints& kept_;
    std::optional<boost::asio::ip::tcp::acceptor> acceptor_;
    boost::asio::steady_timer pause_;  ///< of accepting, when no descriptor is left
    TokenBucket bucket_;               ///< of all pulls
    DeadlineTimer pace_;               ///< the bucket has enough again
    std::map<LinkId, std::unique_ptr<Link>> links_;
    std::map<std::string, LinkId> dialled_;                                 ///< by endpoint
    std::map<std::pair<StepKey, std::string>, std::vector<Done>> fetches_;  ///< under way
    std::uint64_t last_number_ = 0;
};

}  // namespace ddprun::agent
