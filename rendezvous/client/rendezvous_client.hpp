#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/rng.hpp"
#include "base/tagged.hpp"
#include "rendezvous/client/link.hpp"
#include "rendezvous/host/endpoint_choice.hpp"
#include "rendezvous/transport/connection.hpp"
#include "rendezvous/transport/dial.hpp"
#include "rendezvous/transport/tls.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/secret.hpp"

namespace ddprun::rdzv {

struct ClientOptions {
    std::vector<Endpoint> endpoints;  ///< at least one; tried in turn, of several daemons
    std::optional<JobSecret> secret;  ///< none: --insecure, works only with a daemon that has none
    std::shared_ptr<const TlsContext> tls;  ///< null: none, works only with a daemon that has none
    JobId job;                              ///< the only job that may be joined on this link; UTF-8
    Limits limits;
    /// Before each attempt to connect, with the numeric addresses that `asked` was found to have,
    /// which are then tried in order; may change them. `is_daemon_lasting`: a supervisor keeps the
    /// daemon running that accepted us last. May be empty.
    std::function<void(const Endpoint& asked, std::vector<Endpoint>& addresses,
                       bool is_daemon_lasting)>
        before_attempt;
    Rng rng{0};  ///< jitters the pauses between attempts
};

/// A Link over TCP. Connects, proves the secret both ways, then carries frames; when the connection
/// ends it tries again, as EndpointChoice decides, until stop(). Final, and not tried again:
/// another secret, another protocol version, a peer that is no ddprun rendezvous.
/// Every end of a connection except stop() resets it, so that the rendezvous does not take it for
/// the death of this process. Host names are resolved anew for each attempt, on a helper thread; a
/// resolver that hangs delays neither stop() nor the loop, but io_context::run() returns only after
/// it. Lives on one thread, that of `io`. Outlives the loop, or is destroyed after stop() is done.
class RendezvousClient final : public Link {
public:
    RendezvousClient(boost::asio::io_context& io, ClientOptions options);
    ~RendezvousClient() override;
    RendezvousClient(const RendezvousClient&) = delete;
    RendezvousClient& operator=(const RendezvousClient&) = delete;

    void start(LinkEvents events) override;
    void send(const AgentMessage& message) override;
    void obey(const OperatorOrder& order, const std::string& from, OrderAnswer answer) override;
    void drop(const std::string& why) override;
    void stop(std::function<void()> done) override;

private:
    struct Idle {};       ///< not started, or over after a final failure
    struct Searching {};  ///< an attempt is under way, or the pause before it
    struct Up {
        explicit Up(Connection& dialled) : connection(dialled) {}

        Connection& connection;  ///< held by attempt()
    };
    struct Stopping {
        std::function<void()> done;
    };

    /// Why there is no connection (any more).
    struct Down {
        std::string why;
        bool is_final = false;
    };

    [[nodiscard]] DialOptions dial_options();
    [[nodiscard]] bool is_stopping() const { return std::holds_alternative<Stopping>(state_); }
    boost::asio::awaitable<void> run();
    boost::asio::awaitable<Down> attempt(EndpointAttempt asked);
    void tell_up(const Connection::Socket& socket);
    void take(std::string_view body);
    void report(const Down& down);

    ClientOptions options_;
    boost::asio::io_context& io_;
    EndpointChoice choice_;
    Dialer dialer_;
    boost::asio::steady_timer pause_;
    DeadlineTimer answer_wait_;  ///< for the answer to a join
    LinkEvents events_;
    std::variant<Idle, Searching, Up, Stopping> state_;
    bool is_daemon_lasting_ = false;  ///< said the one that accepted us last
    std::string last_reported_;
};

}  // namespace ddprun::rdzv
