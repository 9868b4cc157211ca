#include "launcher/ctl/ended_page.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/output/event_file.hpp"
#include "agent/output/run_folder.hpp"
#include "base/limits.hpp"
#include "base/os/read_files.hpp"
#include "base/os/unix_time.hpp"
#include "launcher/ctl/ended_job.hpp"
#include "launcher/ctl/json_field.hpp"
#include "launcher/ctl/show_logs.hpp"
#include "launcher/ctl/tcp_sockets.hpp"
#include "rendezvous/events/event_log.hpp"
#include "rendezvous/http/http_server.hpp"
#include "rendezvous/transport/listener.hpp"

namespace ddprun::launcher {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using nlohmann::ordered_json;

constexpr std::size_t kLastLinesMax = 1000;  ///< of each log, that the page is shown
constexpr std::size_t kConnectionsMax = 64;  ///< of which nothing was admitted yet

/// A run's folder, to those who ask over HTTP. On the loop's thread.
class EndedRun final : public rdzv::Watched {
public:
    explicit EndedRun(std::string folder)
        : folder_(std::move(folder)), log_(std::make_shared<rdzv::EventLog>(Limits())) {
        std::ifstream file(folder_ + "/" + agent::kEventsName);
        for (std::string line; std::getline(file, line);) {
            if (ordered_json::accept(line)) {
                log_->restore(std::move(line));
            }
        }
        log_->close();
    }

    Result<std::shared_ptr<const rdzv::EventLog>> events(const std::string& /*job*/) override {
        return std::shared_ptr<const rdzv::EventLog>(log_);
    }

    Result<MakeText> status(const std::string& /*job*/) override {
        return MakeText([folder = folder_] {
            const ordered_json state = ordered_json::parse(
                read_whole(folder + "/" + agent::kStateName).value_or(""), nullptr, false);
            return json_line(ended_status(ended_job({folder}, ""), state, unix_now()));
        });
    }

    Result<MakeText> metrics(rdzv::FiguresOf /*extent*/, std::size_t /*watchers*/) override {
        return Error{ErrorCode::NotFound, "a run that is over has no /metrics"};
    }

    Result<std::uint64_t> read_workers(const std::string& /*job*/,
                                       const rdzv::ReadWorkers& question) override {
        if (question.what == rdzv::WorkersText::Stacks) {
            return Error{
                ErrorCode::NotFound,
                "its workers have ended; those of a hang are in attempt_*/stacks of " + folder_};
        }
        LogsQuestion logs{.run = folder_};
        if (question.rank) {
            logs.ranks = {*question.rank};
        }
        logs.generation = question.generation;
        logs.pattern = question.pattern;
        logs.last_lines = std::min(
            question.last_lines ? static_cast<std::size_t>(*question.last_lines) : kLastLinesMax,
            kLastLinesMax);
        logs.host = agent::read_run_note(folder_).value_or(agent::RunNote()).hostname;
        Result<std::string> text = text_of(logs);
        if (!text) {
            return text.error();
        }
        read_.emplace(++last_reading_, *std::move(text));
        return last_reading_;
    }

    std::optional<std::string> take_read(std::uint64_t reading) override {
        const auto found = read_.find(reading);
        if (found == read_.end() || found->second.empty()) {
            return std::nullopt;
        }
        return std::exchange(found->second, {});
    }

    void end_reading(std::uint64_t reading) override { read_.erase(reading); }

    void obey(const rdzv::OperatorOrder& /*order*/, const std::string& /*from*/,
              OrderAnswer answer) override {
        answer(Error{ErrorCode::PermissionDenied, "the run is over"});
    }

private:
    static Result<std::string> text_of(const LogsQuestion& logs) {
        char* text = nullptr;
        std::size_t size = 0;
        std::FILE* const file = ::open_memstream(&text, &size);
        if (file == nullptr) {
            return system_error(errno, "room for the ends of logs");
        }
        const Result<void> shown = show_logs(logs, file, file);
        std::fclose(file);
        const std::unique_ptr<char, decltype(&std::free)> owned(text, &std::free);
        return shown ? Result<std::string>(std::string(text, size)) : shown.error();
    }

    std::string folder_;
    std::shared_ptr<rdzv::EventLog> log_;
    std::map<std::uint64_t, std::string> read_;
    std::uint64_t last_reading_ = 0;
};

/// The other end of `connected` is this user's or root's: on the loopback the kernel reports it.
bool is_of_this_user(const tcp::socket& connected) {
    error_code failure;
    const tcp::endpoint peer = connected.remote_endpoint(failure);
    const tcp::endpoint own = connected.local_endpoint(failure);
    if (failure) {
        return false;
    }
    const std::vector<TcpSocket> sockets = tcp_sockets();
    return std::any_of(sockets.begin(), sockets.end(), [&peer, &own](const TcpSocket& socket) {
        return socket.local == rdzv::Endpoint{peer.address().to_string(), peer.port()} &&
               socket.remote == rdzv::Endpoint{own.address().to_string(), own.port()} &&
               (socket.owner == ::geteuid() || socket.owner == 0);
    });
}

/// The server of one such run, from begin() to the signal.
class EndedPage {
public:
    explicit EndedPage(const std::string& folder)
        : run_(folder),
          acceptor_(io_),
          signals_(io_, SIGINT, SIGTERM),
          http_(io_, Limits(), run_, {}, [this](ConnectionId) { --unsettled_; }) {}

    Result<void> serve(const std::function<void(std::uint16_t)>& on_begun) {
        Result<rdzv::Listener> listener = rdzv::listen_on("127.0.0.1", 0);
        if (!listener) {
            return listener.error();
        }
        error_code failure;
        acceptor_.assign(tcp::v4(), listener->fd.get(), failure);
        if (failure) {
            return Error{ErrorCode::System, "serving the page: " + failure.message()};
        }
        (void)listener->fd.release();
        signals_.async_wait([this](error_code cancelled, int) {
            if (!cancelled) {
                error_code ignored;
                acceptor_.close(ignored);
                http_.stop([this] { io_.stop(); });
            }
        });
        asio::co_spawn(io_, accept_all(), asio::detached);
        on_begun(listener->port);
        io_.run();
        return {};
    }

private:
    asio::awaitable<void> accept_all() {
        for (;;) {
            auto [failure, socket] =
                co_await acceptor_.async_accept(asio::as_tuple(asio::use_awaitable));
            if (failure == asio::error::operation_aborted || !acceptor_.is_open()) {
                co_return;
            }
            if (!failure && unsettled_ < kConnectionsMax && is_of_this_user(socket)) {
                adopt(std::move(socket));
            }
        }
    }

    void adopt(tcp::socket socket) {
        ++unsettled_;
        const bool is_taken =
            http_.adopt(ConnectionId(++last_connection_),
                        {.socket = std::move(socket), .tls = nullptr, .seen = {}}, "this user");
        unsettled_ -= is_taken ? 0 : 1;
    }

    asio::io_context io_{1};
    EndedRun run_;
    tcp::acceptor acceptor_;
    asio::signal_set signals_;
    rdzv::HttpServer http_;
    std::size_t unsettled_ = 0;
    std::uint64_t last_connection_ = 0;
};

/// The node of this folder, in the fields with which a rendezvous reports a node.
ordered_json closed_node(const ordered_json& node, const ordered_json& state) {
    ordered_json closed = {{"node", field_of(node, "host")},
                           {"hostname", field_of(node, "host")},
                           {"standing", "member"},
                           {"is_connected", true},
                           {"base_rank", node.value("base_rank", 0)},
                           {"slots", node.value("slots", 0)}};
    for (const char* name : {"memory_bytes", "memory_limit_bytes"}) {
        if (state.is_object() && state.contains(name)) {
            closed[name] = state[name];
        }
    }
    if (node.contains("log_lost")) {
        closed["log_lost"] = agent::lost_text(agent::lost_in(nlohmann::json(node)));
    }
    return closed;
}

}  // namespace

ordered_json ended_status(const ordered_json& job, const ordered_json& state, Milliseconds now) {
    ordered_json closed = {
        {"job", job["job"]},
        {"phase", "closed"},
        {"recorded", true},
        {"generation", job["generation"]},
        {"world_size", job["world_size"]},
        {"verdict", job.contains("text") ? field_of(job, "text") : "its ddprun was killed"}};
    if (job.contains("exit_code")) {
        closed["exit_code"] = job["exit_code"];
    }
    if (job.contains("ended_ms")) {
        closed["in_phase_ms"] = now.count() - job["ended_ms"].get<std::int64_t>();
    }
    closed["age_ms"] = now.count() - job["started_ms"].get<std::int64_t>();
    closed["nodes"] = ordered_json::array({closed_node(job["nodes"].front(), state)});
    if (job.contains("time")) {
        closed["time"] = job["time"];
    }
    // A state of another generation says nothing of the last one's ranks.
    const bool is_of_last =
        state.is_object() && state.value("generation", std::uint64_t{0}) == job["generation"];
    for (const char* name : {"ranks", "slowest"}) {
        if (is_of_last && state.contains(name)) {
            closed[name] = state[name];
        }
    }
    return {{"jobs", ordered_json::array({std::move(closed)})}, {"jobs_left_out", 0}};
}

Result<void> serve_ended_page(const std::string& folder,
                              const std::function<void(std::uint16_t)>& on_begun) {
    EndedPage page(folder);
    return page.serve(on_begun);
}

}  // namespace ddprun::launcher
