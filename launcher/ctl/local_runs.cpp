#include "launcher/ctl/local_runs.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/output/event_file.hpp"
#include "agent/output/run_folder.hpp"
#include "agent/output/run_socket.hpp"
#include "base/limits.hpp"
#include "base/whole_number.hpp"
#include "launcher/ctl/http_request.hpp"

namespace ddprun::launcher {

namespace {

namespace fs = std::filesystem;

constexpr const char* kPeer = "its ddprun";
constexpr std::size_t kEventPieceBytes = std::size_t{64} << 10;  ///< of a file, written at once

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
    const std::optional<agent::RunNote> note = agent::read_run_note(folder);
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

/// GET `target` is asked of that run.
Result<void> ask(HttpRequest& request, const std::string& folder, const std::string& target) {
    Result<UniqueFd> connected = agent::connect_to_run(folder);
    return connected ? request.send(*std::move(connected), AF_UNIX, "localhost", target)
                     : Result<void>(connected.error());
}

Result<void> copy_file(const std::string& folder, std::uint64_t from, const TakePiece& take) {
    const std::string path = folder + "/" + agent::kEventsName;
    std::ifstream file(path);
    if (!file) {
        return Error{ErrorCode::NotFound, fmt::format("there are no events in {}", path)};
    }
    std::string piece;
    for (std::string line; std::getline(file, line);) {
        const nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
        const auto number = event.is_object() ? event.find("seq") : event.end();
        const bool is_wanted = number != event.end() && number->is_number_unsigned() &&
                               number->get<std::uint64_t>() >= from;
        piece += is_wanted ? line + "\n" : "";
        if (piece.size() >= kEventPieceBytes) {
            if (!take(piece)) {
                return {};
            }
            piece.clear();
        }
    }
    (void)take(piece);
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
        // A path that cannot be looked at is no run's, as one that is not there.
        std::error_code failure;
        if (fitting.empty() && !wanted.empty() && fs::is_directory(wanted, failure)) {
            fitting.push_back(wanted);
        }
    }
    if (fitting.size() != 1) {
        return none_of(fitting, wanted, log_dir);
    }
    return fitting.front();
}

Result<std::string> ask_run(const std::string& folder) {
    HttpRequest request(kPeer);
    const Result<void> sent = ask(request, folder, "/status");
    return sent ? request.read_all() : sent.error();
}

Result<void> show_events(const std::string& folder, std::uint64_t from, bool follows,
                         const TakePiece& take) {
    if (follows) {
        HttpRequest request(kPeer);
        if (ask(request, folder, fmt::format("/events?from={}&follow=1", from))) {
            return request.copy_to(take);
        }
    }
    // It has those, too, that the ddprun does not keep any more.
    return copy_file(folder, from, take);
}

Result<std::string> job_of_run(const std::string& folder) {
    const std::optional<agent::RunNote> note = agent::read_run_note(folder);
    if (!note) {
        return Error{ErrorCode::NotFound,
                     fmt::format("{}/run.json does not tell whose run it is", folder)};
    }
    return note->job;
}

Result<HttpAnswer> post_to_run(const std::string& folder, const std::string& target,
                               const std::string& json) {
    Result<UniqueFd> connected = agent::connect_to_run(folder);
    if (!connected) {
        return connected.error();
    }
    HttpRequest request(kPeer);
    const Result<void> sent = request.post(*std::move(connected), target, json);
    return sent ? request.read_answer() : sent.error();
}

Result<void> show_answer(const std::string& folder, const std::string& target,
                         const TakePiece& take) {
    HttpRequest request(kPeer);
    const Result<void> sent = ask(request, folder, target);
    return sent ? request.copy_to(take) : sent;
}

}  // namespace ddprun::launcher
