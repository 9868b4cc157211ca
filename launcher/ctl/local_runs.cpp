#include "launcher/ctl/local_runs.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/output/event_file.hpp"
#include "agent/output/run_folder.hpp"
#include "agent/output/run_socket.hpp"
#include "base/limits.hpp"
#include "base/os/visit_folder.hpp"
#include "base/whole_number.hpp"
#include "launcher/ctl/http_request.hpp"
#include "launcher/ctl/local_rendezvous.hpp"

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

/// Adds the runs of one process: a ddprun keeps its run's folder open, for the lock is on that.
void add_held_by(const fs::path& process, std::set<std::string>& runs) {
    visit_folder(process / "fd", [&runs](const fs::path& descriptor) {
        std::error_code unreadable;
        const std::string target = fs::read_symlink(descriptor, unreadable).string();
        if (!unreadable && agent::is_run_name(name_of_run(target)) && has_run_socket(target)) {
            runs.insert(target);
        }
    });
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

Error none_of(const RunWanted& wanted) {
    return {ErrorCode::NotFound,
            wanted.name.empty()
                ? fmt::format("no job of this user runs on this machine; look at those that are "
                              "over with ddpctl runs ({})",
                              wanted.log_dir)
                : fmt::format("no run here is {}; ddpctl jobs lists those at work, ddpctl runs "
                              "those in {}",
                              wanted.name, wanted.log_dir)};
}

/// A run, and what it says of itself.
struct Candidate {
    std::string folder;
    std::optional<agent::RunNote> note;

    [[nodiscard]] std::string job() const { return note ? note->job : std::string(); }
    [[nodiscard]] std::string node() const { return note ? note->hostname : std::string(); }
};

Candidate candidate_at(const std::string& folder) {
    return {.folder = folder, .note = agent::read_run_note(folder)};
}

/// Whether they are nodes of one life of one job. Two jobs of one node may have one name.
bool are_of_one_job(const Candidate& one, const Candidate& other) {
    if (!one.note || !other.note || one.note->job != other.note->job ||
        one.note->rendezvous.empty() || other.note->rendezvous.empty()) {
        return false;
    }
    const auto ends_before = [](const agent::RunNote& left, const agent::RunNote& right) {
        return left.ended && *left.ended < right.started;
    };
    return !ends_before(*one.note, *other.note) && !ends_before(*other.note, *one.note) &&
           is_same_rendezvous(one.note->rendezvous, other.note->rendezvous);
}

std::string nodes_text(const std::vector<Candidate>& nodes) {
    std::string list;
    for (const Candidate& one : nodes) {
        list += (list.empty() ? "" : ", ") + one.node();
    }
    return list;
}

/// `runs` of one job, at least one; of them that of the wanted node, if one is named.
Result<ChosenJob> of_node(std::vector<Candidate> runs, const RunWanted& wanted, bool is_at_work) {
    if (!wanted.node.empty()) {
        const std::string nodes = nodes_text(runs);
        const std::string job = runs.front().job();
        std::erase_if(runs, [&wanted](const Candidate& run) { return run.node() != wanted.node; });
        if (runs.empty()) {
            return Error{ErrorCode::NotFound,
                         fmt::format("job {} has no node {} on this machine; it has {}", job,
                                     wanted.node, nodes)};
        }
    }
    ChosenJob chosen{.folders = {}, .is_at_work = is_at_work};
    for (const Candidate& run : runs) {
        chosen.folders.push_back(run.folder);
    }
    return chosen;
}

std::vector<Candidate> at_work(const RunWanted& wanted) {
    std::vector<Candidate> fitting;
    for (const std::string& run : running_here(wanted.log_dir)) {
        if (wanted.name.empty() || is_named(run, wanted.name)) {
            fitting.push_back(candidate_at(run));
        }
    }
    std::stable_sort(fitting.begin(), fitting.end(), [](const auto& left, const auto& right) {
        return left.node() < right.node();
    });
    return fitting;
}

/// `running`, at least one, if they are of one job.
Result<ChosenJob> choose_among(std::vector<Candidate> running, const RunWanted& wanted) {
    const bool is_one_job = std::all_of(
        running.begin() + 1, running.end(),
        [&running](const Candidate& other) { return are_of_one_job(running.front(), other); });
    if (is_one_job) {
        return of_node(std::move(running), wanted, true);
    }
    std::string list;
    for (const Candidate& run : running) {
        list += (list.empty() ? "" : ", ") + name_of_run(run.folder);
    }
    return Error{ErrorCode::NotFound,
                 fmt::format("several runs are meant: {}; name one of them", list)};
}

Result<ChosenJob> choose_ended(const RunWanted& wanted) {
    std::vector<Candidate> fitting;
    for (const agent::FoundRun& run : agent::runs_in(wanted.log_dir)) {
        if (!wanted.name.empty() && !is_named(run.path, wanted.name)) {
            continue;
        }
        const Candidate found = candidate_at(run.path);
        if (fitting.empty() || are_of_one_job(fitting.front(), found)) {
            fitting.push_back(found);  // the newest come first
        }
    }
    // A path that cannot be read is no run's, like one that does not exist.
    std::error_code failure;
    if (fitting.empty() && !wanted.name.empty() && fs::is_directory(wanted.name, failure)) {
        fitting.push_back(candidate_at(wanted.name));
    }
    return fitting.empty() ? none_of(wanted) : of_node(std::move(fitting), wanted, false);
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
    visit_folder("/proc", [&runs](const fs::path& process) {
        if (whole_number<int>(process.filename().string())) {
            add_held_by(process, runs);
        }
    });
    return {runs.begin(), runs.end()};
}

Result<ChosenJob> choose_job(const RunWanted& wanted) {
    std::vector<Candidate> running = at_work(wanted);
    if (!running.empty()) {
        return choose_among(std::move(running), wanted);
    }
    return wanted.takes_ended ? choose_ended(wanted) : none_of(wanted);
}

std::string nodes_of(const ChosenJob& job) {
    std::vector<Candidate> nodes;
    for (const std::string& folder : job.folders) {
        nodes.push_back(candidate_at(folder));
    }
    return nodes_text(nodes);
}

Result<std::string> choose_run(const RunWanted& wanted) {
    const Result<ChosenJob> chosen = choose_job(wanted);
    if (!chosen) {
        return chosen.error();
    }
    if (chosen->folders.size() == 1 || !chosen->is_at_work) {
        return chosen->folders.front();
    }
    return Error{ErrorCode::NotFound,
                 fmt::format("job {} has several nodes on this machine: {}; choose one with --node",
                             candidate_at(chosen->folders.front()).job(), nodes_of(*chosen))};
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
