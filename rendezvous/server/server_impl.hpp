#pragma once

#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/os/unique_fd.hpp"
#include "rendezvous/host/lobby.hpp"
#include "rendezvous/server/half_open.hpp"
#include "rendezvous/server/jobs.hpp"
#include "rendezvous/server/port_store.hpp"
#include "rendezvous/server/server.hpp"
#include "rendezvous/server/session.hpp"
#include "rendezvous/transport/connection.hpp"

namespace ddprun::rdzv {

/// What a Server is made of, one file per concern:
/// server.cpp            starting, messages, the end
/// server_accepting.cpp  connections until they have spoken, and who makes room
/// server_leading.cpp    one of several daemons: deciding or sending agents on
/// server_store.cpp      the store on its port
class Server::Impl : public std::enable_shared_from_this<Impl> {
public:
    Impl(boost::asio::io_context& io, ServerOptions options);

    void start(std::function<void()> on_ended);
    void stop();
    void lead(Journal& journal, const std::map<JobId, std::string>& records,
              std::function<bool(Instant)> may_decide);
    void follow(const std::string& leader);
    [[nodiscard]] std::size_t job_count() const { return jobs_->size(); }
    [[nodiscard]] std::size_t connection_count() const {
        return sessions_.size() + newcomers_.size();
    }

private:
    using Self = std::shared_ptr<Impl>;

    /// Has said nothing yet.
    struct Newcomer {
        UniqueFd fd;
        Instant since{};
    };

    static boost::asio::awaitable<void> accept_newcomers(Self self);
    static boost::asio::awaitable<void> hear_newcomers(Self self);
    static boost::asio::awaitable<void> serve(Self self, Session& session, Instant deadline);
    static boost::asio::awaitable<void> carry(Self self, Session& session);

    JobHooks make_hooks(std::function<bool(Instant)> may_decide);
    std::shared_ptr<Jobs> make_jobs(Durable durable, std::function<bool(Instant)> may_decide);
    void send_to_leader(Session& session);
    [[nodiscard]] std::optional<Instant> accept_some();
    [[nodiscard]] std::optional<Instant> make_room(const HalfOpen::Room& room);
    [[nodiscard]] std::optional<Instant> cannot_accept(Instant now, int errno_value);
    void admit(Instant now, UniqueFd fd, const sockaddr_storage& address);
    void limit_silence();
    void hear_some();
    void hear(ConnectionId id);
    void open_session(ConnectionId id, Instant since, UniqueFd fd);
    void left(ConnectionId id);
    void expect_store_clients();
    void take(Session& session, std::string_view body);
    void answer(Session& session, std::string_view question);
    void join(Session& session, const Join& message);
    void hear_unfit(Session& session, const Unfit& message);
    void turn_away(Session& session, const Refused& refused);
    void ended(const Session& session, ConnectionEnd how);
    void close_for_job(ConnectionId id);
    void read_ready(const JobId& job);
    void refuse(const std::string& peer, const std::string& why);
    void log(const std::string& line) const;
    void end_if_idle();
    StoreServer::Say store_say();
    void hand_to_store(UniqueFd client);
    void tell_first_node(const std::string& line);

    ServerOptions options_;
    boost::asio::io_context& io_;
    boost::asio::ip::tcp::acceptor acceptor_;
    boost::asio::posix::stream_descriptor spoke_;  ///< epoll set of newcomers, each told of once
    boost::asio::steady_timer silence_;            ///< of the oldest newcomer
    boost::asio::steady_timer room_;         ///< cancelled when there is room for another handshake
    boost::asio::steady_timer start_timer_;  ///< exits_when_idle: nobody came
    std::function<void()> on_ended_;
    HalfOpen half_open_;
    PortStore store_;
    std::shared_ptr<Jobs> jobs_;
    std::map<ConnectionId, Newcomer> newcomers_;
    std::map<ConnectionId, Session> sessions_;  ///< each until its serve() has ended
    std::optional<Lobby> lobby_;                ///< while another one leads, or none
    std::uint64_t last_id_ = 0;
    RefusalLog refusals_;
    bool has_waited_for_start_ = false;
    bool is_full_ = false;  ///< accepting waits for room_
    bool is_stopped_ = false;
};

}  // namespace ddprun::rdzv
