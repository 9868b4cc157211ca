#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>

#include "base/limits.hpp"
#include "base/os/deadline_timer.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "base/watch_limits.hpp"
#include "rendezvous/events/event_log.hpp"
#include "rendezvous/http/fair_turns.hpp"
#include "rendezvous/http/http_access.hpp"
#include "rendezvous/http/http_request.hpp"
#include "rendezvous/http/http_stream.hpp"
#include "rendezvous/http/request_head.hpp"
#include "rendezvous/http/text_maker.hpp"
#include "rendezvous/http/watcher_places.hpp"
#include "rendezvous/wire/control.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// The source of an HttpServer's answers. Failure becomes the answer to the request: NotFound,
/// there is no such job; Unreachable, another daemon knows.
class Watched {
public:
    virtual ~Watched() = default;

    /// Events of `job`; empty: of the only one. Kept as long as a reader has the pointer.
    [[nodiscard]] virtual Result<std::shared_ptr<const EventLog>> events(
        const std::string& job) = 0;

    /// Makes a text of how things were when it was asked for: on any thread, once.
    using MakeText = std::function<std::string()>;

    /// How `job` stands (empty: everything), as one JSON object in a line. May add events.
    [[nodiscard]] virtual Result<MakeText> status(const std::string& job) = 0;

    /// Figures in Prometheus' text format; `watchers` are connected.
    [[nodiscard]] virtual Result<MakeText> metrics(FiguresOf extent, std::size_t watchers) = 0;

    /// A watcher follows the events of `job` as server-sent events, and has taken all so far.
    virtual void follows(const std::string& /*job*/) {}

    /// A watcher wants to read what workers of `job` have written, or where they are. Returns the
    /// reading's number; Failure as above.
    [[nodiscard]] virtual Result<std::uint64_t> read_workers(const std::string& job,
                                                             const ReadWorkers& question) = 0;
    /// The text that came since the last call; empty: none until published(). Nullopt: the reading
    /// is over.
    [[nodiscard]] virtual std::optional<std::string> take_read(std::uint64_t reading) = 0;
    /// The watcher takes no more. Called after the end, too.
    virtual void end_reading(std::uint64_t reading) = 0;

    /// Hears what becomes of an order; Failure as above.
    using OrderAnswer = std::function<void(const Result<OperatorReply>&)>;
    /// An operator asks for something; `from` is told to people. Answered once, when it is durable.
    /// A process that decides nothing answers with a failure.
    virtual void obey(const OperatorOrder& order, const std::string& from, OrderAnswer answer) = 0;
};

/// Answers watchers on a Unix socket, this user's and root's, and those handed to adopt(). The
/// answer to `GET /status` is the state, to `GET /events` the events, to `GET /logs` and
/// `/stacks` what workers have written and where they are, to `GET /metrics` figures, to `GET /`
/// a page that shows them (http_request.hpp), to an operator's `POST /jobs/JOB/ACTION` the
/// order's outcome (order_request.hpp): on a port, the operator has to prove it. No watcher can
/// hold it up: one that does not take what it was sent within Limits::http_timeout, or falls
/// behind the events that are kept, is dropped. Only a request that was admitted takes one of the
/// WatcherPlaces; without a free one it is answered if the answer ends, and the connection
/// closed. However many there are, the loop does at most WatchLimits::watchers_at_once small
/// pieces of work for them in one turn, and long texts are made on another thread. Costs nothing
/// while no watcher is connected.
///
/// On the thread of `io`; outlives the run of the loop, as Watched does.
class HttpServer {
public:
    /// `on_settled` is told once of each that was adopted: it has a place, or is gone.
    HttpServer(boost::asio::io_context& io, const Limits& limits, Watched& watched,
               HttpAccess access = {}, std::function<void(ConnectionId)> on_settled = {});
    HttpServer(const HttpServer&) = delete;
    HttpServer& operator=(const HttpServer&) = delete;

    /// Serves who connects to `socket`, which listens. Once.
    [[nodiscard]] Result<void> start(UniqueFd socket);

    /// A watcher's connection, handed over.
    struct Adopted {
        boost::asio::ip::tcp::socket socket;
        std::unique_ptr<TlsChannel> tls;  ///< null: none; else its handshake is over
        std::string seen;                 ///< with TLS: what was read of it already
    };

    /// Serves who has connected, as far as admit() lets it; `peer` names it to people. The caller
    /// bounds how many may be unsettled. False, and it is closed: the server is stopping.
    [[nodiscard]] bool adopt(ConnectionId id, Adopted connected, std::string peer);

    /// Closes `id` if it is not settled yet; its peer, if so.
    [[nodiscard]] std::optional<std::string> evict(ConnectionId id);

    /// There are new events: who follows gets them.
    void published();

    /// Accepts no more watchers, and lets those who follow have the last events. Calls `done` when
    /// they are gone, at once if there are none, after Limits::close_timeout at the latest.
    void stop(std::function<void()> done);

private:
    using Socket = HttpStream::Socket;
    using HeadParser = boost::beast::http::request_parser<boost::beast::http::empty_body>;

    struct Session {
        Session(boost::asio::io_context& io, HttpStream connection,
                std::optional<bool> on_this_machine);

        /// The loop goes on: it is woken for what is pending.
        void close();

        HttpStream stream;
        DeadlineTimer deadline;         ///< of a request or an answer: then it is dropped
        FairTurns::Place turn;          ///< to do a piece of work for it
        bool is_awaiting_news = false;  ///< then it lines up for that
        bool is_idle = true;            ///< no request of it is answered
        bool has_peer_spoken = false;   ///< while it follows: it has hung up, or has no business
        HttpWay way;                    ///< on the Unix socket the uid was checked
        std::string peer;               ///< for people
        std::optional<ConnectionId> unsettled;  ///< adopted, and nothing of it was admitted yet
        std::string address;                    ///< of its WatcherPlaces; empty: this machine's
        bool has_place = false;
    };

    /// An answer that may come when no session waits for it any more.
    template <typename Value>
    struct Pending {
        explicit Pending(boost::asio::io_context& io, boost::asio::steady_timer::time_point until)
            : has_come(io, until) {}

        void take(const Result<Value>& answer) {
            value = answer;
            has_come.cancel();
        }

        boost::asio::steady_timer has_come;  ///< cancelled when it has
        std::optional<Result<Value>> value;
    };

    boost::asio::awaitable<void> accept();
    boost::asio::awaitable<void> serve(Session& session);
    boost::asio::awaitable<bool> answer_one(Session& session, boost::beast::flat_buffer& buffer);
    boost::asio::awaitable<bool> take_order(Session& session, boost::beast::flat_buffer& buffer,
                                            HeadParser& head);
    boost::asio::awaitable<bool> carry_out(Session& session, OperatorOrder order, bool keeps);
    boost::asio::awaitable<bool> send(Session& session, unsigned status, std::string type,
                                      std::string body, bool keeps);
    boost::asio::awaitable<bool> send_text(Session& session, WatchRequest request, bool keeps);
    [[nodiscard]] std::shared_ptr<Pending<TextMaker::Text>> want_text(const WatchRequest& request);
    boost::asio::awaitable<bool> send_page(Session& session, const PageFile& file, bool keeps);
    boost::asio::awaitable<void> send_events(Session& session, WatchRequest request,
                                             std::shared_ptr<const EventLog> events);
    boost::asio::awaitable<bool> begin_stream(Session& session, const char* type);
    boost::asio::awaitable<void> end_stream(Session& session);
    boost::asio::awaitable<void> send_read(Session& session, std::uint64_t reading);
    boost::asio::awaitable<void> say_end(Session& session);
    void watch_peer(Session& session);
    boost::asio::awaitable<bool> await_turn(Session& session);
    boost::asio::awaitable<bool> await_news(Session& session);
    boost::asio::awaitable<bool> await_place(Session& session);
    boost::asio::awaitable<bool> send_batch(Session& session, const std::string& batch);
    boost::asio::awaitable<bool> send_error(Session& session, const Error& error, bool keeps);
    /// The next lines of a watcher that follows.
    struct Place {
        std::uint64_t next = 1;
        std::uint64_t next_passing = 1;  ///< only of server-sent events
    };
    [[nodiscard]] std::string next_batch(const EventLog& events, bool is_sse, Place& place) const;
    [[nodiscard]] Result<void> take_place(Session& session, bool stays);
    void settle(Session& session);
    void arm(Session& session);
    void end_if_last();

    boost::asio::io_context& io_;
    Limits limits_;
    Watched& watched_;
    HttpAccess access_;
    std::function<void(ConnectionId)> on_settled_;
    WatcherPlaces places_;
    boost::asio::local::stream_protocol::acceptor acceptor_;
    boost::asio::steady_timer accept_again_;  ///< after a moment without descriptors
    FairTurns turns_;
    TextMaker texts_;
    std::list<Session> sessions_;
    std::map<ConnectionId, Session*> unsettled_;
    std::function<void()> on_stopped_;  ///< while it is stopping
    DeadlineTimer stop_deadline_;
    bool is_stopping_ = false;
};

}  // namespace ddprun::rdzv
