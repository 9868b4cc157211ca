#include "rendezvous/http/http_server.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string_view>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/http/span_body.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "rendezvous/transport/keepalive.hpp"

namespace ddprun::rdzv {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr unsigned kOk = 200;
constexpr unsigned kAccepted = 202;
constexpr unsigned kUnauthorized = 401;
constexpr const char* kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";

/// The page loads its own files and asks its own server; nothing else, and no other page frames it.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The user at the other end of a Unix socket, for people; none: neither this user nor root, who
/// may read this process's memory anyway.
std::optional<std::string> owner_at(int socket) {
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
        (peer.uid != ::geteuid() && peer.uid != 0)) {
        return std::nullopt;
    }
    return fmt::format("uid {}, process {}", peer.uid, peer.pid);
}

unsigned status_of(ErrorCode code) {
    constexpr unsigned kBadRequest = 400;
    constexpr unsigned kNotFound = 404;
    constexpr unsigned kForbidden = 403;
    constexpr unsigned kNoSuchMethod = 405;
    constexpr unsigned kUnavailable = 503;
    switch (code) {
        case ErrorCode::NotFound:
            return kNotFound;
        case ErrorCode::Refused:
            return kNoSuchMethod;
        case ErrorCode::PermissionDenied:
            return kForbidden;
        case ErrorCode::BadSecret:
            return kUnauthorized;
        case ErrorCode::Unreachable:
        case ErrorCode::TimedOut:
            return kUnavailable;
        default:
            return kBadRequest;
    }
}

unsigned status_of(OrderFault fault) {
    return std::find_if(kOrderStatuses.begin(), kOrderStatuses.end(),
                        [fault](const auto& one) { return one.first == fault; })
        ->second;
}

/// Whether the peer's address is one of this machine's: then it is that of this end, too.
bool is_of_this_machine(const asio::ip::tcp::socket& socket) {
    error_code failure;
    const asio::ip::address peer = socket.remote_endpoint(failure).address();
    return !failure && (peer.is_loopback() || peer == socket.local_endpoint(failure).address());
}

/// Headers of every answer with a body: no cache keeps it, and no browser guesses its type.
template <typename Answer>
void describe(Answer& answer, std::string_view type) {
    answer.set(http::field::content_type, {type.data(), type.size()});
    answer.set(http::field::cache_control, "no-store");
    answer.set("X-Content-Type-Options", "nosniff");
}

std::string error_body(const std::string& what) {
    const nlohmann::json object = {{"error", what}};
    return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

HttpServer::Session::Session(asio::io_context& io, HttpStream connection,
                             std::optional<bool> on_this_machine)
    : stream(std::move(connection)),
      deadline(io, [this] { close(); }),
      turn(io),
      way{.is_on_this_machine = on_this_machine, .is_hidden = stream.has_tls()} {}

void HttpServer::Session::close() {
    error_code ignored;
    stream.socket().close(ignored);
    turn.has_come.cancel();
}

HttpServer::HttpServer(asio::io_context& io, const Limits& limits, Watched& watched,
                       HttpAccess access, std::function<void(ConnectionId)> on_settled)
    : io_(io),
      limits_(limits),
      watched_(watched),
      access_(std::move(access)),
      on_settled_(std::move(on_settled)),
      places_(limits.watchers_max, WatchLimits().watchers_per_address_max),
      acceptor_(io),
      accept_again_(io),
      turns_(io, WatchLimits().watchers_at_once),
      texts_(io, WatchLimits().http_texts_bytes_max),
      stop_deadline_(io, [this] {
          for (Session& session : sessions_) {
              session.close();
          }
      }) {}

Result<void> HttpServer::start(UniqueFd socket) {
    error_code failure;
    acceptor_.assign(asio::local::stream_protocol(), socket.get(), failure);
    if (failure) {
        return Error{ErrorCode::System, "taking over a listening socket: " + failure.message()};
    }
    (void)socket.release();
    asio::co_spawn(io_, accept(), asio::detached);
    return {};
}

asio::awaitable<void> HttpServer::accept() {
    while (!is_stopping_) {
        auto [failure, accepted] =
            co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
        if (failure == asio::error::operation_aborted || is_stopping_) {
            co_return;
        }
        if (failure == asio::error::connection_aborted) {
            continue;
        }
        if (failure) {
            // No descriptors are left: those who watch keep theirs, and the job needs the rest.
            accept_again_.expires_after(limits_.reconnect_backoff_max);
            const auto [is_cancelled] =
                co_await accept_again_.async_wait(asio::as_tuple(asio::use_awaitable));
            if (is_cancelled) {
                co_return;
            }
            continue;
        }
        std::optional<std::string> owner = owner_at(accepted.native_handle());
        // Those who have a place, and as many who ask.
        if (!owner || sessions_.size() >= 2 * limits_.watchers_max) {
            continue;
        }
        Session& session =
            sessions_.emplace_back(io_, HttpStream(Socket(std::move(accepted))), std::nullopt);
        session.peer = *std::move(owner);
        asio::co_spawn(io_, serve(session), asio::detached);
    }
}

bool HttpServer::adopt(ConnectionId id, Adopted connected, std::string peer) {
    if (is_stopping_) {
        return false;
    }
    const bool is_here = is_of_this_machine(connected.socket);
    // One that only listens to events sends nothing: its machine may have gone.
    ask_when_silent(connected.socket.native_handle(), limits_);
    error_code failure;
    const std::string from = connected.socket.remote_endpoint(failure).address().to_string();
    HttpStream stream(Socket(std::move(connected.socket)), std::move(connected.tls),
                      std::move(connected.seen));
    Session& session = sessions_.emplace_back(io_, std::move(stream), is_here);
    session.peer = std::move(peer);
    session.address = is_here ? std::string() : from;
    session.unsettled = id;
    unsettled_.emplace(id, &session);
    asio::co_spawn(io_, serve(session), asio::detached);
    return true;
}

std::optional<std::string> HttpServer::evict(ConnectionId id) {
    const auto found = unsettled_.find(id);
    if (found == unsettled_.end()) {
        return std::nullopt;
    }
    found->second->close();
    return found->second->peer;
}

void HttpServer::settle(Session& session) {
    if (session.unsettled) {
        const ConnectionId id = *std::exchange(session.unsettled, std::nullopt);
        unsettled_.erase(id);
        on_settled_(id);
    }
}

/// For who has been admitted. Failure: he would stay, and there is none.
Result<void> HttpServer::take_place(Session& session, bool stays) {
    if (!session.has_place && places_.take(session.address)) {
        session.has_place = true;
        settle(session);
    }
    if (session.has_place || !stays) {
        return {};
    }
    return Error{ErrorCode::Unreachable,
                 fmt::format("{} watch over HTTP already, as many as may: ask again later, or for "
                             "/status",
                             places_.size())};
}

void HttpServer::arm(Session& session) {
    session.deadline.set(std::chrono::steady_clock::now() + limits_.http_timeout);
}

asio::awaitable<void> HttpServer::serve(Session& session) {
    boost::beast::flat_buffer buffer(limits_.http_header_bytes_max);
    bool goes_on = true;
    while (goes_on && !is_stopping_) {
        goes_on = co_await answer_one(session, buffer);
    }
    co_await say_end(session);
    session.deadline.set(std::nullopt);
    session.close();
    settle(session);
    if (session.has_place) {
        places_.leave(session.address);
    }
    // The handlers that this has cancelled have their turn first: they read the session.
    co_await asio::post(io_, asio::use_awaitable);
    sessions_.remove_if([&session](const Session& one) { return &one == &session; });
    end_if_last();
}

/// Else the client cannot distinguish a complete answer from one that was cut off on the way.
asio::awaitable<void> HttpServer::say_end(Session& session) {
    const std::string words = session.stream.last_words();
    if (!words.empty()) {
        arm(session);
        co_await asio::async_write(session.stream.socket(), asio::buffer(words),
                                   asio::as_tuple(asio::use_awaitable));
    }
}

void HttpServer::end_if_last() {
    if (is_stopping_ && sessions_.empty() && on_stopped_) {
        stop_deadline_.set(std::nullopt);
        std::exchange(on_stopped_, nullptr)();
    }
}

/// False: this connection is done.
asio::awaitable<bool> HttpServer::answer_one(Session& session, boost::beast::flat_buffer& buffer) {
    HeadParser parser;
    parser.header_limit(static_cast<std::uint32_t>(limits_.http_header_bytes_max));
    parser.body_limit(limits_.http_body_bytes_max);
    arm(session);
    session.is_idle = true;
    const auto [failure, count] = co_await http::async_read_header(
        session.stream, buffer, parser, asio::as_tuple(asio::use_awaitable));
    session.is_idle = false;
    if (failure) {
        co_return false;
    }
    const bool has_turn = co_await await_turn(session);
    if (!has_turn) {
        co_return false;
    }
    const auto method = parser.get().method_string();
    const auto target = parser.get().target();
    if (is_order({method.data(), method.size()}, {target.data(), target.size()})) {
        const bool goes_on = co_await take_order(session, buffer, parser);
        co_return goes_on;
    }
    const auto [incomplete, rest] = co_await http::async_read(session.stream, buffer, parser,
                                                              asio::as_tuple(asio::use_awaitable));
    if (incomplete) {
        co_return false;
    }
    bool keeps = parser.get().keep_alive();
    const Result<WatchRequest> request = judge(parser.get(), session.way, access_);
    if (!request) {
        const bool may_go_on = keeps && request.error().code != ErrorCode::PermissionDenied;
        const bool is_sent = co_await send_error(session, request.error(), may_go_on);
        co_return is_sent;
    }
    if (request->what == WatchRequest::What::Page) {
        // Any client may have the page, and takes no place by that.
        const bool is_sent = co_await send_page(session, *request->file, keeps);
        co_return is_sent;
    }
    const bool stays =
        request->what == WatchRequest::What::Events || request->what == WatchRequest::What::Workers;
    if (const Result<void> placed = take_place(session, stays); !placed) {
        const bool is_sent = co_await send_error(session, placed.error(), false);
        co_return is_sent;
    }
    keeps = keeps && session.has_place;
    if (request->what == WatchRequest::What::Events) {
        const Result<std::shared_ptr<const EventLog>> events = watched_.events(request->job);
        if (!events) {
            const bool is_sent = co_await send_error(session, events.error(), keeps);
            co_return is_sent;
        }
        co_await send_events(session, *request, *events);
        co_return false;
    }
    if (request->what == WatchRequest::What::Workers) {
        const Result<std::uint64_t> reading = watched_.read_workers(request->job, request->read);
        if (!reading) {
            const bool is_sent = co_await send_error(session, reading.error(), keeps);
            co_return is_sent;
        }
        co_await send_read(session, *reading);
        co_return false;
    }
    const bool is_sent = co_await send_text(session, *request, keeps);
    co_return is_sent;
}

/// Rejects unauthorised orders before reading the body.
asio::awaitable<bool> HttpServer::take_order(Session& session, boost::beast::flat_buffer& buffer,
                                             HeadParser& head) {
    Result<OperatorOrder> order = judge_order(head.get(), session.way, access_, limits_);
    if (!order) {
        const bool is_sent = co_await send_error(session, order.error(), false);
        co_return is_sent;
    }
    const Result<void> placed = take_place(session, false);
    DDP_CHECK(placed.has_value());
    http::request_parser<http::string_body> parser(std::move(head));
    const auto [failure, count] = co_await http::async_read(session.stream, buffer, parser,
                                                            asio::as_tuple(asio::use_awaitable));
    if (failure) {
        co_return false;
    }
    const bool keeps = parser.get().keep_alive() && session.has_place;
    order = parse_order_body(*std::move(order), parser.get().body(), limits_);
    if (!order) {
        const bool is_sent = co_await send_error(session, order.error(), keeps);
        co_return is_sent;
    }
    const bool is_sent = co_await carry_out(session, *std::move(order), keeps);
    co_return is_sent;
}

asio::awaitable<bool> HttpServer::carry_out(Session& session, OperatorOrder order, bool keeps) {
    const auto pending = std::make_shared<Pending<OperatorReply>>(
        io_, std::chrono::steady_clock::now() + limits_.http_timeout);
    watched_.obey(order, session.peer,
                  [pending](const Result<OperatorReply>& answer) { pending->take(answer); });
    session.deadline.set(std::nullopt);
    if (!pending->value) {
        co_await pending->has_come.async_wait(asio::as_tuple(asio::use_awaitable));
    }
    if (!pending->value || !*pending->value) {
        const Error error = pending->value
                                ? pending->value->error()
                                : Error{ErrorCode::TimedOut,
                                        "the journal does not answer: look in /events whether the "
                                        "order was taken"};
        const bool is_sent = co_await send_error(session, error, keeps);
        co_return is_sent;
    }
    const OperatorReply& reply = **pending->value;
    std::string body = order_answer(reply);
    const unsigned status = status_of(reply.fault);
    const bool is_sent = co_await send(session, status, "application/json", std::move(body), keeps);
    co_return is_sent;
}

asio::awaitable<bool> HttpServer::send_error(Session& session, const Error& error, bool keeps) {
    std::string body = error_body(error.what);
    const bool is_sent =
        co_await send(session, status_of(error.code), "application/json", std::move(body), keeps);
    co_return is_sent;
}

asio::awaitable<bool> HttpServer::send(Session& session, unsigned status, std::string type,
                                       std::string body, bool keeps) {
    http::response<http::string_body> answer;
    answer.result(status);
    describe(answer, type);
    if (status == kUnauthorized) {
        answer.set(http::field::www_authenticate, "Bearer");
    }
    answer.keep_alive(keeps);
    answer.body() = std::move(body);
    answer.prepare_payload();
    arm(session);
    const auto [failure, count] =
        co_await http::async_write(session.stream, answer, asio::as_tuple(asio::use_awaitable));
    co_return !failure && keeps;
}

std::shared_ptr<HttpServer::Pending<TextMaker::Text>> HttpServer::want_text(
    const WatchRequest& request) {
    auto pending =
        std::make_shared<Pending<TextMaker::Text>>(io_, asio::steady_timer::time_point::max());
    const auto take = [pending](const Result<TextMaker::Text>& text) { pending->take(text); };
    if (request.what == WatchRequest::What::Metrics) {
        const FiguresOf figures = request.figures;
        texts_.want(
            fmt::format("metrics {} {}", figures.nodes, figures.ranks),
            [this, figures] { return watched_.metrics(figures, places_.size()); }, take);
    } else {
        const std::string job = request.job;
        texts_.want(
            "status " + job, [this, job] { return watched_.status(job); }, take);
    }
    return pending;
}

asio::awaitable<bool> HttpServer::send_text(Session& session, WatchRequest request, bool keeps) {
    session.deadline.set(std::nullopt);
    const std::shared_ptr<Pending<TextMaker::Text>> pending = want_text(request);
    if (!pending->value) {
        co_await pending->has_come.async_wait(asio::as_tuple(asio::use_awaitable));
    }
    if (!*pending->value) {
        const Error error = pending->value->error();
        const bool is_sent = co_await send_error(session, error, keeps);
        co_return is_sent;
    }
    const TextMaker::Text text = **pending->value;
    http::response<http::empty_body> head;
    const bool is_metrics = request.what == WatchRequest::What::Metrics;
    describe(head, is_metrics ? kPrometheusText : "application/json");
    head.keep_alive(keeps);
    head.content_length(text->size());
    http::response_serializer<http::empty_body> serializer(head);
    bool goes_on = co_await await_turn(session);
    if (goes_on) {
        arm(session);
        const auto [failure, count] = co_await http::async_write_header(
            session.stream, serializer, asio::as_tuple(asio::use_awaitable));
        goes_on = !failure;
    }
    for (std::string_view left = *text; goes_on && !left.empty();) {
        const auto piece = asio::buffer(left.substr(0, limits_.http_batch_bytes_max));
        arm(session);
        const auto [failure, count] =
            co_await asio::async_write(session.stream, piece, asio::as_tuple(asio::use_awaitable));
        left.remove_prefix(piece.size());
        goes_on = !failure;
        if (goes_on && !left.empty()) {
            goes_on = co_await await_turn(session);
        }
    }
    co_return goes_on&& keeps;
}

asio::awaitable<bool> HttpServer::send_page(Session& session, const PageFile& file, bool keeps) {
    http::response<http::span_body<const char>> answer;
    describe(answer, file.type);
    answer.set("Content-Security-Policy", kPagePolicy);
    answer.set("Referrer-Policy", "no-referrer");
    answer.set("Cross-Origin-Resource-Policy", "same-origin");
    answer.keep_alive(keeps);
    answer.body() = {file.bytes.data(), file.bytes.size()};
    answer.prepare_payload();
    arm(session);
    const auto [failure, count] =
        co_await http::async_write(session.stream, answer, asio::as_tuple(asio::use_awaitable));
    co_return !failure && keeps;
}

/// Begins an answer in pieces, none of which waits for the next.
asio::awaitable<bool> HttpServer::begin_stream(Session& session, const char* type) {
    http::response<http::empty_body> answer;
    describe(answer, type);
    answer.keep_alive(false);
    answer.chunked(true);
    http::response_serializer<http::empty_body> serializer(answer);
    arm(session);
    const auto [failure, count] = co_await http::async_write_header(
        session.stream, serializer, asio::as_tuple(asio::use_awaitable));
    session.deadline.set(std::nullopt);
    co_return !failure;
}

asio::awaitable<void> HttpServer::end_stream(Session& session) {
    const auto end = http::make_chunk_last();
    arm(session);
    co_await asio::async_write(session.stream, end, asio::as_tuple(asio::use_awaitable));
}

void HttpServer::watch_peer(Session& session) {
    session.stream.socket().async_wait(Socket::wait_read, [&session](error_code cancelled) {
        if (!cancelled) {
            session.has_peer_spoken = true;
            session.turn.has_come.cancel();
        }
    });
}

asio::awaitable<void> HttpServer::send_read(Session& session, std::uint64_t reading) {
    bool goes_on = co_await begin_stream(session, "text/plain; charset=utf-8");
    watch_peer(session);
    while (goes_on) {
        const std::optional<std::string> text = watched_.take_read(reading);
        if (!text) {
            break;
        }
        if (text->empty()) {
            goes_on = co_await await_news(session);
        } else {
            goes_on = co_await send_batch(session, *text);
            if (goes_on) {
                goes_on = co_await await_turn(session);
            }
        }
    }
    watched_.end_reading(reading);
    if (goes_on) {
        co_await end_stream(session);
    }
}

asio::awaitable<void> HttpServer::send_events(Session& session, WatchRequest request,
                                              std::shared_ptr<const EventLog> events) {
    const char* type = "application/x-ndjson";
    if (request.is_sse) {
        type = "text/event-stream";
    }
    bool goes_on = co_await begin_stream(session, type);
    if (request.follows) {
        watch_peer(session);
    }
    Place place{.next = std::max(request.from, events->first())};
    while (goes_on) {
        if (place.next < events->first()) {
            co_return;  // Too slow: what it would get next is not kept any more.
        }
        if (request.is_sse) {
            watched_.follows(request.job);
        }
        const std::string batch = next_batch(*events, request.is_sse, place);
        if (!batch.empty()) {
            goes_on = co_await send_batch(session, batch);
            if (goes_on) {
                goes_on = co_await await_turn(session);
            }
        } else if (request.follows && !is_stopping_ && !events->is_closed()) {
            goes_on = co_await await_news(session);
        } else {
            break;
        }
    }
    if (goes_on) {
        co_await end_stream(session);
    }
}

/// Until others have had theirs. False: this client is served no longer.
asio::awaitable<bool> HttpServer::await_turn(Session& session) {
    turns_.line_up(session.turn);
    const bool is_there = co_await await_place(session);
    co_return is_there;
}

/// Until there are some, and it is its turn. False: this client is served no longer.
asio::awaitable<bool> HttpServer::await_news(Session& session) {
    session.is_awaiting_news = true;
    const bool is_there = co_await await_place(session);
    session.is_awaiting_news = false;
    co_return is_there;
}

asio::awaitable<bool> HttpServer::await_place(Session& session) {
    if (!session.has_peer_spoken && session.stream.socket().is_open()) {
        co_await session.turn.has_come.async_wait(asio::as_tuple(asio::use_awaitable));
    }
    turns_.leave(session.turn);
    co_return !session.has_peer_spoken && session.stream.socket().is_open();
}

asio::awaitable<bool> HttpServer::send_batch(Session& session, const std::string& batch) {
    const auto chunk = http::make_chunk(asio::buffer(batch));
    arm(session);
    const auto [failure, count] =
        co_await asio::async_write(session.stream, chunk, asio::as_tuple(asio::use_awaitable));
    session.deadline.set(std::nullopt);
    co_return !failure;
}

std::string HttpServer::next_batch(const EventLog& events, bool is_sse, Place& place) const {
    std::string batch;
    std::uint64_t& next = place.next;
    for (; next < events.next() && batch.size() < limits_.http_batch_bytes_max; ++next) {
        const std::string& line = events.line(next);
        batch += is_sse ? fmt::format("id: {}\ndata: {}\n\n", next, line) : line + "\n";
    }
    if (!is_sse) {
        return batch;
    }
    for (auto passing = events.passing().lower_bound(place.next_passing);
         passing != events.passing().end() && batch.size() < limits_.http_batch_bytes_max;
         ++passing) {
        batch += fmt::format("data: {}\n\n", passing->second);
        place.next_passing = passing->first + 1;
    }
    return batch;
}

void HttpServer::published() {
    for (Session& session : sessions_) {
        if (session.is_awaiting_news) {
            turns_.line_up(session.turn);
        }
    }
}

void HttpServer::stop(std::function<void()> done) {
    is_stopping_ = true;
    error_code ignored;
    acceptor_.close(ignored);
    accept_again_.cancel();
    if (sessions_.empty()) {
        done();
        return;
    }
    on_stopped_ = std::move(done);
    for (Session& session : sessions_) {
        if (session.is_idle) {
            session.close();
        }
    }
    stop_deadline_.set(std::chrono::steady_clock::now() + limits_.close_timeout);
    published();
}

}  // namespace ddprun::rdzv
