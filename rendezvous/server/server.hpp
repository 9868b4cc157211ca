#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "base/rng.hpp"
#include "base/tagged.hpp"
#include "rendezvous/http/http_server.hpp"
#include "rendezvous/journal/journal.hpp"
#include "rendezvous/server/half_open.hpp"
#include "rendezvous/server/jobs.hpp"
#include "rendezvous/server/port_store.hpp"
#include "rendezvous/server/progress_watch.hpp"
#include "rendezvous/server/session.hpp"
#include "rendezvous/server/watched_jobs.hpp"
#include "rendezvous/server/workers_reading.hpp"
#include "rendezvous/store/net/store_server.hpp"
#include "rendezvous/transport/connection.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/secret.hpp"

namespace ddprun::rdzv {

class TlsContext;

struct ServerOptions {
    UniqueFd listener;                ///< a listening TCP socket (listener.hpp)
    std::optional<JobSecret> secret;  ///< none: --insecure, admits only agents without a secret
    std::optional<JobSecret> operator_secret;  ///< none: takes no orders
    std::shared_ptr<const TlsContext> tls;  ///< null: none; else who does not speak it is refused
    Limits limits;
    std::unique_ptr<Journal> journal;        ///< null: runs are kept in memory only
    std::map<JobId, std::string> records;    ///< what it holds: the runs to continue
    bool is_one_of_several = false;          ///< decides nothing before lead()
    bool serves_tcpstore = false;            ///< to all clients of the port, for torchrun
    HttpAccess http;                         ///< who may watch beside programs of this machine
    MetricsText metrics_text;                ///< empty: there is no /metrics
    bool exits_when_idle = false;            ///< ends by itself, see Server
    Milliseconds idle_start_timeout{30000};  ///< exits_when_idle: no agent that may join comes
    Rng rng{0};
    std::function<void(const std::string&)> log;  ///< one line; may be empty
};

/// The rendezvous daemon without its process: accepts agents, lets each prove the secret, and feeds
/// one Coordinator per job. Decides nothing about jobs itself. Lives on the one thread of `io`.
/// With exits_when_idle it ends once a run has existed, every run is done and no peer is connected,
/// or when no agent has joined in time. That time begins again when an agent is lost, and not gone,
/// before it has joined.
///
/// Outlives the loop, as its coroutines and handlers refer to it: it is destroyed when the loop
/// does not run any more, and before the loop. An earlier destruction needs stop() first, and the
/// loop must run until no handler is ready. A server that has ended holds no more work on `io`.
class Server {
public:
    Server(boost::asio::io_context& io, ServerOptions options);
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    /// `on_ended` is called once, from the loop, when the server ended by itself.
    void start(std::function<void()> on_ended);

    // With is_one_of_several:

    /// This daemon decides from now on, about the runs of `records`, as long as `may_decide` says
    /// so. A decision that it cannot write to `journal` is not told.
    void lead(Journal& journal, const std::map<JobId, std::string>& records,
              std::function<bool(Instant)> may_decide);

    /// It decides nothing from now on: agents are sent to `leader` (HOST:PORT). Empty: no leader is
    /// known; agents that come wait until one is.
    void follow(const std::string& leader);

    /// Stops listening and closes every connection. Agents take it for a daemon that went away.
    void stop();

    [[nodiscard]] std::size_t job_count() const { return jobs_.host().size(); }
    /// Half-open ones included.
    [[nodiscard]] std::size_t connection_count() const {
        return sessions_.size() + newcomers_.size();
    }

private:
    /// Has said nothing yet.
    struct Newcomer {
        UniqueFd fd;
        Instant since{};
    };

    // server.cpp: starting, messages, the end
    boost::asio::awaitable<void> serve(Session& session, Instant deadline);
    boost::asio::awaitable<void> carry(Session& session);
    void tell_of_stranger(const Session& session, const Error& refused);
    void expect_join(Session& session);
    [[nodiscard]] JobHooks make_hooks();
    [[nodiscard]] NewsHooks make_news_hooks();
    void send(ConnectionId id, const RendezvousMessage& message);
    void take(Session& session, std::string_view body);
    void answer(Session& session, std::string_view question);
    void obey(Session& session, std::string_view body);
    [[nodiscard]] std::function<void(std::string_view)> listener_of(Session& session);
    [[nodiscard]] std::optional<std::string> misfit(const Session& session,
                                                    const AgentMessage& message) const;
    void ended(const Session& session, ConnectionEnd how);
    void close_for_job(const CloseConnection& close);
    void drop(ConnectionId id);
    void read_ready(const JobId& job);
    void refuse(const std::string& peer, const std::string& why);
    void log(const std::string& line) const;
    void end_if_idle();

    // server_accepting.cpp: connections until they have spoken, and who makes room
    boost::asio::awaitable<void> attend_newcomers();
    void attend_some();
    [[nodiscard]] std::size_t look_for_arrivals();
    void watch_listener(int operation, std::uint32_t events);
    void pause_accepting(Instant until);
    [[nodiscard]] std::size_t accept_some();
    [[nodiscard]] std::optional<Instant> make_room(const HalfOpen::Room& room);
    [[nodiscard]] std::optional<Instant> cannot_accept(Instant now, int errno_value);
    void admit(Instant now, UniqueFd fd, const sockaddr_storage& address);
    void limit_silence();
    void hear(ConnectionId id);
    void open_session(ConnectionId id, Instant since, UniqueFd fd);
    [[nodiscard]] std::optional<boost::asio::ip::tcp::socket> take_socket(ConnectionId id,
                                                                          UniqueFd fd);
    void left(ConnectionId id);

    // server_leading.cpp: one of several daemons, deciding or sending agents on
    /// False: this daemon decides.
    bool send_to_leader(Session& session);

    // server_watching.cpp: HTTP on its port
    void hand_to_http(ConnectionId id, UniqueFd watcher);
    void hand_to_http(Session& session);

    // server_store.cpp: the store on its port
    [[nodiscard]] StoreServer::Say store_say();
    void expect_store_clients();
    void hand_to_store(UniqueFd client);
    void tell_first_node(const std::string& line);

    ServerOptions options_;
    boost::asio::io_context& io_;
    UniqueFd listener_;
    boost::asio::posix::stream_descriptor arrivals_;  ///< epoll set of listener and newcomers
    boost::asio::steady_timer silence_;               ///< of the oldest newcomer
    boost::asio::steady_timer room_;  ///< cancelled when there is room for another handshake
    std::function<void()> on_ended_;
    HalfOpen half_open_;
    const Duration patience_;  ///< looking on for another newcomer, before the next wait
    PortStore store_;
    Jobs jobs_;
    ProgressWatch progress_;
    WorkersReading reading_;
    WatchedJobs watched_;
    HttpServer http_;
    std::map<ConnectionId, Newcomer> newcomers_;
    std::vector<UniqueFd> for_store_;           ///< have spoken in this turn
    std::map<ConnectionId, Session> sessions_;  ///< each until its serve() has ended
    RepeatEncoder encoder_;
    std::uint64_t last_id_ = 0;
    RefusalLog refusals_;
    bool is_full_ = false;  ///< the listener is not watched until room_
    bool is_stopped_ = false;
};

}  // namespace ddprun::rdzv
