#include "rendezvous/server/server.hpp"

#include <chrono>
#include <thread>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>

#include "base/check.hpp"
#include "rendezvous/core/run.hpp"
#include "rendezvous/server/control.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/handshake.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::microseconds kNap{50};  ///< a shorter sleep is not worth it

HttpAccess access_of(const ServerOptions& options) {
    HttpAccess access = options.http;
    access.has_tls = options.tls != nullptr;
    return access;
}

DaemonHostOptions host_options(const ServerOptions& options) {
    return {.coordinator = {.limits = options.limits,
                            .has_leases = true,
                            .is_lasting = !options.exits_when_idle},
            .is_one_of_several = options.is_one_of_several,
            .serves_tcpstore = options.serves_tcpstore,
            .exits_when_idle = options.exits_when_idle,
            .idle_start_timeout = options.idle_start_timeout};
}

PeerEnd peer_end(ConnectionEnd how) {
    switch (how) {
        case ConnectionEnd::EndOfStream:
            return PeerEnd::ProcessGone;
        case ConnectionEnd::Lost:
        case ConnectionEnd::Failed:
            return PeerEnd::Lost;
        case ConnectionEnd::Finished:
            break;
    }
    return PeerEnd::ClosedHere;
}

bool has_other_cpus() {
    return std::thread::hardware_concurrency() > 1;  // tidy: allow thread
}

}  // namespace

// ------------------------------------------------------------------------------ starting, stopping

Server::Server(asio::io_context& io, ServerOptions options)
    : options_(std::move(options)),
      io_(io),
      listener_(std::move(options_.listener)),
      arrivals_(io),
      silence_(io),
      room_(io),
      half_open_(options_.limits),
      patience_(has_other_cpus() ? Duration(kNap) : Duration::zero()),
      store_(options_.limits, store_say()),
      jobs_(io, host_options(options_), Rng(options_.rng.next()), make_hooks()),
      progress_(io, jobs_, make_news_hooks()),
      reading_(io, jobs_, options_.limits, make_news_hooks()),
      watched_(jobs_, progress_, reading_, options_.limits, options_.metrics_text),
      http_(io, options_.limits, watched_, access_of(options_),
            [this](ConnectionId id) { left(id); }) {
    if (options_.is_one_of_several) {
        watched_.send_to("");
    }
}

void Server::start(std::function<void()> on_ended) {
    on_ended_ = std::move(on_ended);
    error_code failure;
    arrivals_.assign(::epoll_create1(EPOLL_CLOEXEC), failure);
    DDP_CHECK(!failure, failure.message());
    watch_listener(EPOLL_CTL_ADD, EPOLLIN);
    if (options_.serves_tcpstore) {
        store_.serve_everybody();
        expect_store_clients();
    }
    if (!options_.is_one_of_several) {
        jobs_.begin(options_.journal.get(), std::exchange(options_.records, {}));
    }
    asio::co_spawn(io_, attend_newcomers(), asio::detached);
}

void Server::stop() {
    if (is_stopped_) {
        return;
    }
    is_stopped_ = true;
    error_code ignored;
    listener_.reset();
    arrivals_.close(ignored);
    silence_.cancel();
    newcomers_.clear();
    room_.cancel();
    jobs_.stop();
    progress_.stop();
    reading_.stop();
    http_.stop([] {});
    store_.close();
    for (auto& [id, session] : sessions_) {
        session.deadline.cancel();
        session.connection.close();
    }
}

// The agents of a run go on their own when it is closed; a half-open connection may be the first
// agent of the next one.
void Server::end_if_idle() {
    const DaemonHost& host = jobs_.host();
    if (!options_.exits_when_idle || is_stopped_ || !host.is_idle() || connection_count() > 0) {
        return;
    }
    log(host.has_had_any() ? "all runs are closed: done" : "nobody came: done");
    jobs_.erase_records();
    stop();
    if (on_ended_) {
        asio::post(io_, std::move(on_ended_));
    }
}

// ------------------------------------------------------------------------------------- connections

asio::awaitable<void> Server::serve(Session& session, Instant deadline) {
    const Result<void> greeted = co_await greet(session, deadline);
    const bool is_watcher = std::holds_alternative<Session::Watching>(session.state);
    if (is_watcher) {
        hand_to_http(session);
    } else {
        left(session.id);
    }
    const auto* const evicted = std::get_if<Session::Evicted>(&session.state);
    if (evicted != nullptr || !greeted) {
        refuse(session.peer, evicted != nullptr ? evicted->why : greeted.error().what);
        if (evicted == nullptr) {
            tell_of_stranger(session, greeted.error());
        }
    } else if (!is_stopped_ && !is_watcher) {
        co_await carry(session);
    }
    session.deadline.cancel();
    session.connection.close();
    // Handlers of what was cancelled have their turn before this.
    co_await asio::post(io_, asio::use_awaitable);
    const ConnectionId id = session.id;
    sessions_.erase(id);
    end_if_idle();
}

/// The nodes of the job that it wanted to join may be waiting for it.
void Server::tell_of_stranger(const Session& session, const Error& refused) {
    const bool is_certain =
        refused.code == ErrorCode::Refused || refused.code == ErrorCode::BadSecret;
    if (!is_certain || is_stopped_) {
        return;
    }
    std::optional<JobId> wanted;
    jobs_.host().visit([&](const JobId& job, const Coordinator&) {
        if (session.handshake.is_for(job)) {
            wanted = job;
        }
    });
    if (!wanted || session.handshake.role() != PeerRole::Agent) {
        return;
    }
    StrangerRefused stranger{.address = session.address(), .why = refused.what};
    // With --insecure there is none: whatever proof came is not the one that all give then.
    if (refused.code == ErrorCode::BadSecret && options_.secret) {
        stranger.why += fmt::format(
            "; copy {} of the rendezvous's machine to it, or start it with "
            "the same --secret-file",
            options_.secret->origin());
    }
    jobs_.stranger_refused(*wanted, stranger);
}

asio::awaitable<void> Server::carry(Session& session) {
    session.state = Session::Secured{};
    const bool is_agent = session.handshake.role() == PeerRole::Agent;
    std::function<void(std::string_view)> on_body = listener_of(session);
    if (is_agent) {
        expect_join(session);
    } else {
        session.limit(options_.limits.answer_timeout);
    }
    const ConnectionEnd how = co_await session.connection.carry(std::move(on_body));
    if (is_agent) {
        ended(session, how);
    }
}

// A peer that proves itself and joins nothing would keep a daemon that ends when idle for ever. A
// node whose machine is still being checked returns, and finds the daemon: see ended().
void Server::expect_join(Session& session) {
    session.deadline.expires_after(options_.limits.join_deadline);
    session.deadline.async_wait([this, &session](error_code cancelled) {
        if (cancelled) {
            return;
        }
        const bool is_open = std::holds_alternative<Session::Secured>(session.state);
        if (is_open && !jobs_.host().has_joined(session.id)) {
            session.connection.fail(fmt::format("it joined no job within {} s of its handshake",
                                                options_.limits.join_deadline.count() / 1000));
        }
    });
}

// ---------------------------------------------------------------------------------------- messages

/// The role of a connection decides which messages it may send.
std::function<void(std::string_view)> Server::listener_of(Session& session) {
    switch (session.handshake.role()) {
        case PeerRole::Agent:
            return [this, &session](std::string_view body) { take(session, body); };
        case PeerRole::Control:
            return [this, &session](std::string_view body) { answer(session, body); };
        case PeerRole::Operator:
            break;
    }
    return [this, &session](std::string_view body) { obey(session, body); };
}

void Server::take(Session& session, std::string_view body) {
    const Result<AgentMessage> message = decode_agent_message(body, options_.limits);
    if (!message) {
        session.connection.fail(message.error().what);
        return;
    }
    if (const std::optional<std::string> why = misfit(session, *message)) {
        session.connection.fail(*why);
        return;
    }
    const JobId* const member = jobs_.host().job_of(session.id);
    const std::optional<JobId> job = member ? std::optional(*member) : std::nullopt;
    if (const Progress* const progress = std::get_if<Progress>(&*message); progress && job) {
        progress_.hear(*job, session.id, *progress);
    } else if (const WorkersRead* const read = std::get_if<WorkersRead>(&*message); read && job) {
        reading_.hear(session.id, *read);
    } else {
        jobs_.receives(session.id, *message);
        if (const Reached* const reached = std::get_if<Reached>(&*message); reached && job) {
            jobs_.note_told(*job, *reached);
        }
    }
}

/// The hello named one job, and the connection is good for no other.
std::optional<std::string> Server::misfit(const Session& session,
                                          const AgentMessage& message) const {
    const Join* const join = std::get_if<Join>(&message);
    if (join != nullptr && !session.handshake.is_for(join->job)) {
        return "it joins another job than it greeted for";
    }
    const Unfit* const unfit = std::get_if<Unfit>(&message);
    if (unfit != nullptr && !session.handshake.is_for(unfit->job)) {
        return "it is not fit for another job than it greeted for";
    }
    return std::nullopt;
}

// A connection that asks is no agent of any job, and an agent asks nothing. The first question of a
// minute waits until the nodes have told how far their ranks are; its asker may be gone by then.
void Server::answer(Session& session, std::string_view question) {
    if (send_to_leader(session)) {
        return;
    }
    const Result<JobId> job = asked_job(session.handshake, question, options_.limits);
    if (!job || std::holds_alternative<Session::Dismissed>(session.state)) {
        session.connection.fail(job ? "it asks twice" : job.error().what);
        return;
    }
    session.state = Session::Dismissed{};
    progress_.look(*job, [this, id = session.id, job = *job] {
        const auto found = sessions_.find(id);
        if (found != sessions_.end() && !send_to_leader(found->second)) {
            found->second.connection.send(status_body(job, jobs_, progress_, options_.limits));
            found->second.connection.finish();
        }
    });
}

// One order and its answer, which may have to wait for the journal; the connection may be gone by
// then.
void Server::obey(Session& session, std::string_view body) {
    if (send_to_leader(session)) {
        return;
    }
    const Result<OperatorOrder> order = decode<OperatorOrder>(body, options_.limits);
    if (!order || !session.handshake.is_for(order->job) ||
        std::holds_alternative<Session::Dismissed>(session.state)) {
        session.connection.fail(order ? "it greeted for another job, or asks twice"
                                      : order.error().what);
        return;
    }
    session.state = Session::Dismissed{};
    jobs_.obey(*order, session.peer, [this, id = session.id](const OperatorReply& reply) {
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            found->second.connection.send(encode(reply));
            found->second.connection.finish();
        }
    });
}

void Server::ended(const Session& session, ConnectionEnd how) {
    log(fmt::format("connection {} from {} ended: {}", session.id.value(), session.peer,
                    session.connection.why_ended()));
    reading_.ended(session.id);
    if (!is_stopped_ && !std::holds_alternative<Session::Dismissed>(session.state)) {
        jobs_.ended(session.id, peer_end(how));
    }
}

JobHooks Server::make_hooks() {
    JobHooks hooks;
    hooks.send = [this](ConnectionId id, const RendezvousMessage& message) { send(id, message); };
    hooks.close = [this](const CloseConnection& close) { close_for_job(close); };
    hooks.reset = [this](const ResetConnection& reset) {
        if (const auto found = sessions_.find(reset.connection); found != sessions_.end()) {
            found->second.connection.fail(reset.reason);
        }
    };
    hooks.drop = [this](ConnectionId id) { drop(id); };
    hooks.log = [this](const std::string& line) { log(line); };
    hooks.read_ready = [this](const JobId& job) { read_ready(job); };
    hooks.stepped = [this](const JobId& job, const Run* run) { reading_.stepped(job, run); };
    hooks.serve_store = [this](const ServeStore& wanted) {
        store_.serve_members(wanted.admitted, wanted.clients);
        expect_store_clients();
    };
    hooks.close_store = [this] {
        store_.close();
        expect_store_clients();
    };
    hooks.published = [this] { http_.published(); };
    hooks.time_passed = [this] { end_if_idle(); };
    return hooks;
}

NewsHooks Server::make_news_hooks() {
    NewsHooks hooks;
    hooks.send = [this](ConnectionId id, const RendezvousMessage& message) { send(id, message); };
    hooks.news = [this] { http_.published(); };
    return hooks;
}

void Server::send(ConnectionId id, const RendezvousMessage& message) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) {
        return;
    }
    if (std::holds_alternative<Accepted>(message)) {
        found->second.connection.expect_beats();
    }
    found->second.connection.send(encoder_.body_of(message));
}

void Server::close_for_job(const CloseConnection& close) {
    log(fmt::format("connection {} is closed: {}", close.connection.value(), close.reason));
    if (const auto found = sessions_.find(close.connection); found != sessions_.end()) {
        found->second.state = Session::Dismissed{};
        found->second.connection.finish();
    }
}

void Server::drop(ConnectionId id) {
    if (const auto found = sessions_.find(id); found != sessions_.end()) {
        found->second.state = Session::Dismissed{};
        found->second.connection.close();
    }
}

void Server::read_ready(const JobId& job) {
    for (const ConnectionId id : jobs_.host().connections(job)) {
        if (const auto found = sessions_.find(id); found != sessions_.end()) {
            found->second.connection.read_ready();
        }
    }
}

// ----------------------------------------------------------------------------------------- logging

void Server::refuse(const std::string& peer, const std::string& why) {
    const std::string text = fmt::format("turned {} away: {}", peer, why);
    if (const auto line = refusals_.note(std::chrono::steady_clock::now(), text)) {
        log(*line);
    }
}

void Server::log(const std::string& line) const {
    if (options_.log) {
        options_.log(line);
    }
}

}  // namespace ddprun::rdzv
