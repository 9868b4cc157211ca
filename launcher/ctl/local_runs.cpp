#include "launcher/ctl/local_runs.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <system_error>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/output/event_file.hpp"
#include "agent/output/run_folder.hpp"
#include "agent/output/run_socket.hpp"
#include "base/limits.hpp"
#include "base/whole_number.hpp"

namespace ddprun::launcher {

namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;
namespace http = boost::beast::http;
using boost::system::error_code;
using RunSocketStream = asio::generic::stream_protocol::socket;

std::string name_of_run(const std::string& folder) {
    return folder.substr(folder.find_last_of('/') + 1);
}

bool has_run_socket(const std::string& folder) {
    struct stat status {};
    const std::string path = folder + "/" + agent::kRunSocketName;
    return ::lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode) &&
           status.st_uid == ::geteuid();
}

/// Of one process: a ddprun keeps the folder of its run open, for its lock is on that.
void add_held_by(const fs::path& process, std::set<std::string>& runs) {
    std::error_code failure;
    for (fs::directory_iterator it(process / "fd", failure), end; !failure && it != end;
         it.increment(failure)) {
        std::error_code unreadable;
        const std::string target = fs::read_symlink(it->path(), unreadable).string();
        if (!unreadable && agent::is_run_name(name_of_run(target)) && has_run_socket(target)) {
            runs.insert(target);
        }
    }
}

bool has_pid(const std::string& folder, const std::string& wanted) {
    std::ifstream file(folder + "/run.json");
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const std::optional<agent::RunNote> note = agent::parse_run_note(text);
    return note && std::to_string(note->pid) == wanted;
}

bool is_named(const std::string& folder, const std::string& wanted) {
    const std::string name = name_of_run(folder);
    return folder == wanted || name == wanted || agent::is_run_name(name, wanted) ||
           has_pid(folder, wanted);
}

Error none_of(const std::vector<std::string>& runs, const std::string& wanted,
              const std::string& log_dir) {
    if (runs.empty()) {
        return {ErrorCode::NotFound,
                wanted.empty()
                    ? fmt::format("no job of this user runs on this machine; look at those that "
                                  "are over with ddpctl runs ({})",
                                  log_dir)
                    : fmt::format("no run here is {}; ddpctl jobs lists those at work, ddpctl runs "
                                  "those in {}",
                                  wanted, log_dir)};
    }
    std::string list;
    for (const std::string& run : runs) {
        list += (list.empty() ? "" : ", ") + name_of_run(run);
    }
    return {ErrorCode::NotFound, fmt::format("several runs are meant: {}; name one of them", list)};
}

/// Of one run: what has been asked for, and what the answer says.
class RunRequest {
public:
    /// Sends GET `target`.
    [[nodiscard]] Result<void> send(const std::string& folder, const std::string& target) {
        Result<UniqueFd> connected = agent::connect_to_run(folder);
        if (!connected) {
            return connected.error();
        }
        error_code failure;
        socket_.assign(asio::generic::stream_protocol(AF_UNIX, 0), connected->get(), failure);
        if (failure) {
            return Error{ErrorCode::System, "asking a run: " + failure.message()};
        }
        (void)connected->release();
        http::request<http::empty_body> request(http::verb::get, target, 11);
        request.set(http::field::host, "localhost");
        request.keep_alive(false);
        http::write(socket_, request, failure);
        return failure ? Result<void>(lost(failure)) : Result<void>();
    }

    [[nodiscard]] Result<std::string> read_all() {
        http::response_parser<http::string_body> parser;
        parser.body_limit(limits_.run_answer_bytes_max);
        std::optional<error_code> done;
        http::async_read(socket_, buffer_, parser,
                         [&done](error_code failure, std::size_t) { done = failure; });
        io_.run_for(limits_.run_answer_timeout);
        if (!done) {
            socket_.close();
            io_.run();
            return Error{ErrorCode::TimedOut,
                         fmt::format("its ddprun has not answered for {} s; is it stopped?",
                                     limits_.run_answer_timeout.count() / 1000)};
        }
        if (*done) {
            return lost(*done);
        }
        return std::move(parser.get().body());
    }

    /// Until the answer ends, or nobody reads `out` any more.
    [[nodiscard]] Result<void> copy_to(std::FILE* out) {
        http::response_parser<http::buffer_body> parser;
        parser.body_limit(boost::none);
        error_code failure;
        http::read_header(socket_, buffer_, parser, failure);
        std::string piece(limits_.http_batch_bytes_max, '\0');
        while (!failure && !parser.is_done()) {
            parser.get().body().data = piece.data();
            parser.get().body().size = piece.size();
            http::read_some(socket_, buffer_, parser, failure);
            if (failure == http::error::need_buffer) {
                failure = {};
            }
            const std::size_t count = piece.size() - parser.get().body().size;
            if (std::fwrite(piece.data(), 1, count, out) != count || std::fflush(out) != 0) {
                return {};
            }
        }
        return failure ? Result<void>(lost(failure)) : Result<void>();
    }

private:
    static Error lost(error_code failure) {
        return {ErrorCode::ConnectionLost,
                fmt::format("its ddprun has closed the connection: {}", failure.message())};
    }

    const Limits limits_{};
    asio::io_context io_{1};
    RunSocketStream socket_{io_};
    boost::beast::flat_buffer buffer_;
};

Result<void> copy_file(const std::string& folder, std::uint64_t from, std::FILE* out) {
    const std::string path = folder + "/" + agent::kEventsName;
    std::ifstream file(path);
    if (!file) {
        return Error{ErrorCode::NotFound, fmt::format("there are no events in {}", path)};
    }
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
        const auto number = event.is_object() ? event.find("seq") : event.end();
        if (number != event.end() && number->is_number_unsigned() &&
            number->get<std::uint64_t>() >= from) {
            fmt::print(out, "{}\n", line);
        }
    }
    return {};
}

}  // namespace

std::vector<std::string> running_here(const std::string& log_dir) {
    std::set<std::string> runs;
    std::error_code failure;
    const std::string absolute = fs::weakly_canonical(log_dir, failure).string();
    for (const agent::FoundRun& run : agent::runs_in(failure ? log_dir : absolute)) {
        if (run.state == agent::RunState::Held) {
            runs.insert(run.path);
        }
    }
    for (fs::directory_iterator it("/proc", failure), end; !failure && it != end;
         it.increment(failure)) {
        if (whole_number<int>(it->path().filename().string())) {
            add_held_by(it->path(), runs);
        }
    }
    return {runs.begin(), runs.end()};
}

Result<std::string> choose_run(const std::string& log_dir, const std::string& wanted,
                               bool takes_ended) {
    const std::vector<std::string> running = running_here(log_dir);
    std::vector<std::string> fitting;
    for (const std::string& run : running) {
        if (wanted.empty() || is_named(run, wanted)) {
            fitting.push_back(run);
        }
    }
    if (fitting.empty() && takes_ended) {
        for (const agent::FoundRun& run : agent::runs_in(log_dir)) {
            if (fitting.empty() && (wanted.empty() || is_named(run.path, wanted))) {
                fitting.push_back(run.path);  // the newest come first
            }
        }
        if (fitting.empty() && !wanted.empty() && fs::is_directory(wanted)) {
            fitting.push_back(wanted);
        }
    }
    if (fitting.size() != 1) {
        return none_of(fitting, wanted, log_dir);
    }
    return fitting.front();
}

Result<std::string> ask_run(const std::string& folder) {
    RunRequest request;
    const Result<void> sent = request.send(folder, "/status");
    if (!sent) {
        return sent.error();
    }
    return request.read_all();
}

Result<void> show_events(const std::string& folder, std::uint64_t from, bool follows,
                         std::FILE* out) {
    if (follows) {
        RunRequest request;
        if (request.send(folder, fmt::format("/events?from={}&follow=1", from))) {
            return request.copy_to(out);
        }
    }
    // It has those, too, that the ddprun does not keep any more.
    return copy_file(folder, from, out);
}

}  // namespace ddprun::launcher
