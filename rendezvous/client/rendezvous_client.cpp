#include "rendezvous/client/rendezvous_client.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/transport/connection.hpp"
#include "rendezvous/transport/dial.hpp"
#include "rendezvous/wire/codec.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

/// Daemons that send agents to each other disagree, and may agree in a moment.
constexpr int kRedirectsMax = 4;

/// A daemon that did not answer is left alone this often; it may be the only one left.
constexpr int kSkipsMax = 8;

/// Of several daemons one that is gone must not be waited for long.
DialOptions dialling(const ClientOptions& options) {
    DialOptions dial{
        .secret = options.secret, .tls = options.tls, .job = options.job, .limits = options.limits};
    if (options.endpoints.size() > 1) {
        dial.limits.connect_timeout =
            std::min(options.limits.connect_timeout, options.limits.leader_lease / 2);
    }
    return dial;
}

/// The kernel takes connections for a process that is stopped, and nobody answers there.
DialOptions dialling_again(const ClientOptions& options) {
    DialOptions dial = dialling(options);
    dial.limits.hello_timeout = std::min(dial.limits.hello_timeout, dial.limits.connect_timeout);
    return dial;
}

}  // namespace

class RendezvousClient::Impl : public std::enable_shared_from_this<Impl> {
public:
    Impl(asio::io_context& io, ClientOptions options)
        : options_(std::move(options)),
          io_(io),
          dialer_(std::make_shared<Dialer>(io, dialling(options_))),
          hasty_dialer_(std::make_shared<Dialer>(io, dialling_again(options_))),
          pause_(io),
          wait_(io),
          backoff_(options_.limits.reconnect_backoff_min) {
        DDP_CHECK(!options_.endpoints.empty());
    }

    void start(LinkEvents events);
    void send(const AgentMessage& message);
    void drop(const std::string& why);
    void stop(std::function<void()> done);
    void abandon();

private:
    /// Why there is no connection (any more).
    struct Down {
        std::string why;
        bool is_final = false;
    };
    using Self = std::shared_ptr<Impl>;

    static asio::awaitable<void> run(Self self);
    static asio::awaitable<Down> attempt(Self self);

    void take(std::string_view body);
    void follow(const Redirect& redirect);
    void limit_wait();
    [[nodiscard]] Endpoint choose_endpoint();
    [[nodiscard]] bool is_pause_due() const;
    void report(const Down& down);
    Milliseconds next_pause();

    ClientOptions options_;
    asio::io_context& io_;
    const std::shared_ptr<Dialer> dialer_;
    const std::shared_ptr<Dialer> hasty_dialer_;  ///< for the one that fell silent
    asio::steady_timer pause_;
    asio::steady_timer wait_;  ///< for the answer to a join
    LinkEvents events_;
    std::function<void()> done_;
    std::shared_ptr<Connection> connection_;  ///< since it is up
    std::string peer_;                        ///< the endpoint of this attempt, for people
    std::size_t next_endpoint_ = 0;
    std::optional<Endpoint> ask_next_;   ///< whatever the order: sent there, or silent just now
    bool is_hasty_ = false;              ///< the next attempt, to the one that fell silent
    Endpoint asked_early_;               ///< the silent one, out of turn
    std::size_t others_left_ = 0;        ///< to be asked before it has its turn
    int redirects_ = 0;                  ///< in a row
    Endpoint current_;                   ///< of this attempt
    bool is_out_of_turn_ = false;        ///< it was ask_next_
    std::optional<Endpoint> silent_;     ///< does not answer: its daemon is stopped, or gone
    int skips_left_ = 0;                 ///< rounds in which it is not asked
    std::optional<Endpoint> waited_at_;  ///< in vain: another one is asked next
    std::string last_reported_;
    Milliseconds backoff_;
    bool is_daemon_lasting_ = false;  ///< said the one that accepted us last
    bool is_running_ = false;
    bool is_up_ = false;
    bool is_stopping_ = false;
};

// --------------------------------------------------------------------------------- called by owner

void RendezvousClient::Impl::start(LinkEvents events) {
    DDP_CHECK(!is_running_ && !is_stopping_);
    events_ = std::move(events);
    is_running_ = true;
    asio::co_spawn(io_, run(shared_from_this()), asio::detached);
}

void RendezvousClient::Impl::send(const AgentMessage& message) {
    if (!is_up_ || is_stopping_) {
        return;
    }
    const bool asks_for_leader =
        std::holds_alternative<Join>(message) || std::holds_alternative<Unfit>(message);
    if (!asks_for_leader || options_.endpoints.size() == 1) {
        connection_->send(encode(message));
        return;
    }
    AgentMessage telling = message;
    Join* const join = std::get_if<Join>(&telling);
    (join != nullptr ? join->unreachable : std::get<Unfit>(telling).unreachable) =
        silent_ ? to_string(*silent_) : std::string();
    connection_->send(encode(telling));
    limit_wait();
}

// Of several daemons the one that fell silent is asked once more before the others. If it was only
// stopped for a moment, too short to be noticed there, it still leads, and believes us alive for no
// more than a lease: while we wait elsewhere for another leader it would give us up.
void RendezvousClient::Impl::drop(const std::string& why) {
    if (is_up_ && !is_stopping_) {
        if (options_.endpoints.size() > 1) {
            ask_next_ = current_;
            is_hasty_ = true;
            asked_early_ = current_;
            others_left_ = options_.endpoints.size() - 1;
        }
        connection_->fail(why);
    }
}

void RendezvousClient::Impl::stop(std::function<void()> done) {
    const bool is_flushing = is_up_ && !is_stopping_;
    is_stopping_ = true;
    if (is_flushing) {
        done_ = std::move(done);  // run() calls it when the connection is closed
        connection_->finish();
        return;
    }
    abandon();
    asio::post(io_, std::move(done));
}

void RendezvousClient::Impl::abandon() {
    is_stopping_ = true;
    done_ = nullptr;
    dialer_->cancel();
    hasty_dialer_->cancel();
    pause_.cancel();
    wait_.cancel();
    if (connection_) {
        connection_->fail("given up");
    }
}

// --------------------------------------------------------------------------------------- attempts

asio::awaitable<void> RendezvousClient::Impl::run(Self self) {
    // No event may come from inside start().
    co_await asio::post(self->io_, asio::use_awaitable);
    while (!self->is_stopping_) {
        const Down down = co_await attempt(self);
        self->is_up_ = false;
        self->wait_.cancel();
        if (self->connection_) {
            self->connection_->fail(down.why);  // whatever is left of a failed attempt
            self->connection_.reset();
        }
        if (self->is_stopping_) {
            break;
        }
        self->report(down);
        if (down.is_final || self->is_stopping_) {
            break;
        }
        if (!self->is_pause_due()) {
            continue;
        }
        self->pause_.expires_after(self->next_pause());
        const auto [cancelled] =
            co_await self->pause_.async_wait(asio::as_tuple(asio::use_awaitable));
        static_cast<void>(cancelled);  // is_stopping_ tells
    }
    if (const std::function<void()> done = std::exchange(self->done_, nullptr)) {
        done();
    }
}

asio::awaitable<RendezvousClient::Impl::Down> RendezvousClient::Impl::attempt(Self self) {
    if (self->options_.before_attempt && !self->is_daemon_lasting_) {
        self->options_.before_attempt();
    }
    self->current_ = self->choose_endpoint();
    self->peer_ = to_string(self->current_);
    Down down;
    const std::shared_ptr<Dialer> dialer =
        std::exchange(self->is_hasty_, false) ? self->hasty_dialer_ : self->dialer_;
    const Result<std::shared_ptr<Connection>> dialled =
        co_await Dialer::dial(dialer, self->current_);
    if (!dialled) {
        if (self->is_out_of_turn_ || dialled.error().code == ErrorCode::TimedOut) {
            self->silent_ = self->current_;
            self->skips_left_ = kSkipsMax;
        }
        down.why = dialled.error().what;
        down.is_final = is_final(dialled.error());
        co_return down;
    }
    self->connection_ = *dialled;
    if (self->is_stopping_) {
        co_return down;
    }
    self->is_up_ = true;
    self->last_reported_.clear();
    error_code ignored;
    const tcp::endpoint local = self->connection_->socket().local_endpoint(ignored);
    const tcp::endpoint remote = self->connection_->socket().remote_endpoint(ignored);
    self->events_.on_up(local.address().to_string(),
                        Endpoint{remote.address().to_string(), remote.port()});
    std::function<void(std::string_view)> on_body = [impl = self.get()](std::string_view body) {
        impl->take(body);
    };
    co_await Connection::carry(self->connection_, std::move(on_body));
    down.why =
        fmt::format("lost the rendezvous at {}: {}", self->peer_, self->connection_->why_ended());
    co_return down;
}

// ---------------------------------------------------------------------------------------- helpers

void RendezvousClient::Impl::take(std::string_view body) {
    Result<RendezvousMessage> message = decode_rendezvous_message(body, options_.limits);
    if (!message) {
        connection_->fail(message.error().what);
        return;
    }
    if (const Redirect* redirect = std::get_if<Redirect>(&*message)) {
        follow(*redirect);
        return;
    }
    if (const Accepted* accepted = std::get_if<Accepted>(&*message)) {
        is_daemon_lasting_ = accepted->is_lasting;
    }
    redirects_ = 0;
    wait_.cancel();
    silent_.reset();
    others_left_ = 0;
    backoff_ = options_.limits.reconnect_backoff_min;
    if (!is_stopping_) {
        events_.on_message(*std::move(message));
    }
}

void RendezvousClient::Impl::follow(const Redirect& redirect) {
    const Result<Endpoint> endpoint = parse_endpoint(redirect.endpoint);
    if (endpoint && ++redirects_ <= kRedirectsMax) {
        ask_next_ = *endpoint;
        silent_.reset();  // our join told of it: whoever is named nevertheless leads anew
    } else {
        redirects_ = 0;
    }
    connection_->fail(redirect.endpoint.empty()
                          ? "no daemon leads at the moment"
                          : fmt::format("the daemon at {} leads", redirect.endpoint));
}

// A daemon that knows no leader keeps us until there is one. It may be cut off from etcd, or the
// one that was silent may lead again in the same term, which is no news to it: so others are asked.
void RendezvousClient::Impl::limit_wait() {
    wait_.expires_after(options_.limits.leader_lease);
    wait_.async_wait([self = shared_from_this(), asked = connection_](error_code cancelled) {
        if (!cancelled && asked == self->connection_) {
            self->silent_.reset();
            self->waited_at_ = self->current_;
            asked->fail("nobody leads");
        }
    });
}

Endpoint RendezvousClient::Impl::choose_endpoint() {
    is_out_of_turn_ = ask_next_.has_value();
    if (is_out_of_turn_) {
        return *std::exchange(ask_next_, std::nullopt);
    }
    const std::size_t count = options_.endpoints.size();
    const Endpoint& next = options_.endpoints[next_endpoint_ % count];
    const std::optional<Endpoint> waited_at = std::exchange(waited_at_, std::nullopt);
    const bool was_early = others_left_ > 0 && next == asked_early_;
    others_left_ -= std::min<std::size_t>(others_left_, 1);
    if (count > 1 && (was_early || next == waited_at || (next == silent_ && skips_left_-- > 0))) {
        ++next_endpoint_;
    }
    return options_.endpoints[next_endpoint_++ % count];
}

// Whoever has somebody in particular to ask, or others, does so at once.
bool RendezvousClient::Impl::is_pause_due() const {
    return !ask_next_ && next_endpoint_ % options_.endpoints.size() == 0;
}

void RendezvousClient::Impl::report(const Down& down) {
    if (down.is_final || down.why != last_reported_) {
        last_reported_ = down.why;
        events_.on_down(down.why, down.is_final);
    }
}

Milliseconds RendezvousClient::Impl::next_pause() {
    const Milliseconds least = backoff_ / 2;
    backoff_ = std::min(2 * backoff_, options_.limits.reconnect_backoff_max);
    return least + Milliseconds(options_.rng.below(static_cast<std::uint64_t>(least.count()) + 1));
}

// ---------------------------------------------------------------------------------------- the Link

RendezvousClient::RendezvousClient(asio::io_context& io, ClientOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {}

RendezvousClient::~RendezvousClient() {
    impl_->abandon();
}

void RendezvousClient::start(LinkEvents events) {
    impl_->start(std::move(events));
}

void RendezvousClient::send(const AgentMessage& message) {
    impl_->send(message);
}

void RendezvousClient::drop(const std::string& why) {
    impl_->drop(why);
}

void RendezvousClient::stop(std::function<void()> done) {
    impl_->stop(std::move(done));
}

}  // namespace ddprun::rdzv
