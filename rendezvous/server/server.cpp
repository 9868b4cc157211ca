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
      agents_timer_(io),
      half_open_(options_.limits),
      patience_(has_other_cpus() ? Duration(kNap) : Duration::zero()),
      store_(options_.limits, store_say()),
      jobs_(io, options_.limits, Rng(options_.rng.next()), make_hooks(), !options_.exits_when_idle),
      progress_(io, jobs_, make_news_hooks()),
      reading_(io, jobs_, options_.limits, make_news_hooks()),
      watched_(jobs_, progress_, reading_, options_.limits, options_.metrics_text),
      http_(io, options_.limits, watched_, access_of(options_),
            [this](ConnectionId id) { left(id); }) {
    if (options_.is_one_of_several) {
        lobby_.emplace(options_.limits);
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
    jobs_.begin(
        Durable{.journal = options_.journal.get()}, [](Instant) { return true; }, options_.records);
    options_.records.clear();
    if (!jobs_.has_had_any()) {
        await_agents();
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
    agents_timer_.cancel();
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

void Server::await_agents() {
    if (!options_.exits_when_idle || is_stopped_) {
        return;
    }
    awaits_agents_ = true;
    agents_timer_.expires_after(options_.idle_start_timeout);
    agents_timer_.async_wait([this](error_code cancelled) {
        if (!cancelled) {
            awaits_agents_ = false;
            end_if_idle();
        }
    });
}

// The agents of a run go on their own when it is closed; a half-open connection may be the first
// agent of the next one.
void Server::end_if_idle() {
    const bool is_over = !awaits_agents_ && jobs_.are_all_done();
    if (!options_.exits_when_idle || is_stopped_ || !is_over || connection_count() > 0) {
        return;
    }
    log(jobs_.has_had_any() ? "all runs are closed: done" : "nobody came: done");
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
    jobs_.visit([&](const JobId& job, const Coordinator&) {
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
    static_cast<void>(jobs_.step(*wanted, std::move(stranger)));
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
        const bool has_joined = !std::holds_alternative<Session::Secured>(session.state) ||
                                (lobby_ && lobby_->is_waiting(session.id));
        if (!has_joined) {
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
    if (const Join* const joining = std::get_if<Join>(&*message)) {
        join(session, *joining);
        return;
    }
    const JobId* const job = session.job();
    if (const Unfit* const unfit = std::get_if<Unfit>(&*message); unfit && job == nullptr) {
        hear_unfit(session, *unfit);
        return;
    }
    if (job == nullptr) {
        if (!lobby_ || !lobby_->is_waiting(session.id)) {
            session.connection.fail("it spoke before it joined");
        }
    } else if (const Progress* const progress = std::get_if<Progress>(&*message)) {
        progress_.hear(*job, session.id, *progress);
    } else if (const WorkersRead* const read = std::get_if<WorkersRead>(&*message)) {
        reading_.hear(session.id, *read);
    } else if (!jobs_.step(JobId(*job), Received{session.id, *message})) {
        session.connection.fail("its run is long closed");
    } else if (const Reached* const reached = std::get_if<Reached>(&*message)) {
        jobs_.note_told(*job, *reached);
    }
}

// A connection that asks is no agent of any job, and an agent asks nothing. The first question of a
// minute waits until the nodes have told how far their ranks are; its asker may be gone by then.
void Server::answer(Session& session, std::string_view question) {
    if (lobby_) {
        send_to_leader(session);
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
        if (found != sessions_.end() && lobby_) {
            send_to_leader(found->second);
        } else if (found != sessions_.end()) {
            found->second.connection.send(status_body(job, jobs_, progress_, options_.limits));
            found->second.connection.finish();
        }
    });
}

// One order and its answer, which may have to wait for the journal; the connection may be gone by
// then.
void Server::obey(Session& session, std::string_view body) {
    if (lobby_) {
        send_to_leader(session);
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

namespace {

/// The join on that connection was accepted, or is kept until it is known which run goes on.
bool has_joined(const Run* run, ConnectionId connection) {
    return run != nullptr && !std::holds_alternative<Closed>(run->phase) &&
           (run->nodes.by_connection().contains(connection) || run->parked.contains(connection));
}

}  // namespace

void Server::join(Session& session, const Join& message) {
    // The hello named one job, and this connection is good for no other.
    if (!session.handshake.is_for(message.job)) {
        session.connection.fail("it joins another job than it greeted for");
        return;
    }
    if (lobby_) {
        if (lobby_->arrives(session.id, message) == Lobby::Answer::SendOn) {
            send_to_leader(session);
        }
        return;
    }
    if (message.store.port == 0) {
        if (const std::optional<std::string> why = store_.refusal(message.job)) {
            turn_away(session, Refused{.text = *why, .exit_code = kExitUsage});
            return;
        }
    }
    if (!jobs_.open(message.job)) {
        const std::string why =
            fmt::format("the rendezvous serves {} jobs already, its limit; use another one",
                        options_.limits.jobs_max);
        turn_away(session, Refused{.text = why, .exit_code = kExitInternal});
        return;
    }
    session.state = Session::OfJob{message.job};
    awaits_agents_ = false;
    static_cast<void>(jobs_.step(message.job, Received{session.id, message}));
    if (message.store.port == 0 && has_joined(jobs_.run(message.job), session.id)) {
        store_.claim(message.job);
    }
}

void Server::hear_unfit(Session& session, const Unfit& message) {
    if (!session.handshake.is_for(message.job)) {
        session.connection.fail("it is not fit for another job than it greeted for");
    } else if (lobby_) {
        // Else it asks again, here or elsewhere, as long as it has patience.
        if (lobby_->arrives(message) == Lobby::Answer::SendOn) {
            send_to_leader(session);
        }
    } else if (jobs_.open(message.job)) {
        session.state = Session::OfJob{message.job};
        static_cast<void>(jobs_.step(message.job, Received{session.id, message}));
    } else {
        turn_away(session, Refused{.text = message.why, .exit_code = kExitUnfit});
    }
}

void Server::turn_away(Session& session, const Refused& refused) {
    session.connection.send(encode(RendezvousMessage(refused)));
    session.connection.finish();
}

void Server::ended(const Session& session, ConnectionEnd how) {
    log(fmt::format("connection {} from {} ended: {}", session.id.value(), session.peer,
                    session.connection.why_ended()));
    if (lobby_) {
        lobby_->ended(session.id);
    }
    reading_.ended(session.id);
    const bool may_come_again = how == ConnectionEnd::Lost || how == ConnectionEnd::Failed;
    if (may_come_again && std::holds_alternative<Session::Secured>(session.state)) {
        await_agents();
    }
    if (const JobId* const job = session.job(); job != nullptr && !is_stopped_) {
        const bool is_end_of_stream = how == ConnectionEnd::EndOfStream;
        // A run that is forgotten already does not care.
        static_cast<void>(jobs_.step(JobId(*job), ConnectionEnded{session.id, is_end_of_stream}));
    }
}

JobHooks Server::make_hooks() {
    JobHooks hooks;
    hooks.send = [this](ConnectionId id, const RendezvousMessage& message) { send(id, message); };
    hooks.close = [this](ConnectionId id, const std::string& reason) {
        log(fmt::format("connection {} is closed: {}", id.value(), reason));
        close_for_job(id);
    };
    hooks.log = [this](const std::string& line) { log(line); };
    hooks.read_ready = [this](const JobId& job) { read_ready(job); };
    hooks.stepped = [this](const JobId& job, const Run* run) {
        store_.follow(job, run);
        expect_store_clients();
        reading_.stepped(job, run);
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
    found->second.connection.send(encode(message));
}

void Server::close_for_job(ConnectionId id) {
    if (const auto found = sessions_.find(id); found != sessions_.end()) {
        found->second.state = Session::Dismissed{};
        found->second.connection.finish();
    }
}

void Server::read_ready(const JobId& job) {
    for (auto& [id, session] : sessions_) {
        if (session.job() != nullptr && *session.job() == job) {
            session.connection.read_ready();
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
