#include "agent/output/run_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/output/run_socket.hpp"
#include "agent/output/worker_output_files.hpp"
#include "base/limits.hpp"
#include "base/log_limits.hpp"
#include "base/os/shared_file_system.hpp"
#include "base/os/visit_folder.hpp"
#include "rendezvous/wire/json_text.hpp"

namespace ddprun::agent {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRandomDigits = 8;  ///< behind the job's name and an underscore
constexpr std::string_view kNoteName = "/run.json";
constexpr std::string_view kLatest = "/latest";
/// A run on its way out: what is left of one is removed the next time.
constexpr std::string_view kRemoved = ".removed";

std::string note_path(const std::string& run) {
    return run + std::string(kNoteName);
}

/// A folder of this user's; not a link to one. Not open: it is none.
UniqueFd open_own_folder(const std::string& path) {
    UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    const bool is_own =
        folder.is_open() && ::fstat(folder.get(), &status) == 0 && status.st_uid == ::geteuid();
    return is_own ? std::move(folder) : UniqueFd();
}

/// When its workers were last started; runs of older ddpruns have no note.
std::optional<Milliseconds> last_start(const std::string& run) {
    struct stat status {};
    if (::lstat((run + "/by-rank").c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
        return std::nullopt;
    }
    return std::chrono::duration_cast<Milliseconds>(
        std::chrono::seconds(status.st_mtim.tv_sec) +
        std::chrono::nanoseconds(status.st_mtim.tv_nsec));
}

/// The state of a run whose lock is free here. That proves nothing where another machine may have
/// made it: a lock of a folder is not seen through NFS. `note`: none, for it has not been written
/// yet, or cannot be read.
RunState state_of_unlocked(const std::string& run, const std::optional<RunNote>& note,
                           const MachineIdentity& here) {
    if (!note) {
        return RunState::Unclear;
    }
    if (note->exit_code) {
        return RunState::Over;
    }
    const bool is_of_here =
        is_same_boot(here, note->machine) ||
        (may_be_earlier_boot(here, note->machine) && !is_on_shared_file_system(run));
    return is_of_here ? RunState::Dead : RunState::Elsewhere;
}

/// A shared lock for a moment: two who look do not see each other. A run has its note only once
/// its ddprun has the lock.
RunState state_of(int folder, const std::string& run, const std::optional<RunNote>& note,
                  const MachineIdentity& here) {
    if (::flock(folder, LOCK_SH | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK ? RunState::Held : RunState::Unclear;
    }
    ::flock(folder, LOCK_UN);
    return state_of_unlocked(run, note, here);
}

std::optional<FoundRun> run_at(const std::string& path, const std::string& name,
                               const MachineIdentity& here, RunsOf whose) {
    const UniqueFd folder = open_own_folder(path);
    if (!folder.is_open() && whose == RunsOf::ThisUser) {
        return std::nullopt;
    }
    FoundRun run{.path = path, .name = name};
    const std::optional<RunNote> note = read_run_note(path);
    if (note) {
        run.note = *note;
    } else if (const std::optional<Milliseconds> started = last_start(path)) {
        run.note.started = *started;
    } else {
        return std::nullopt;
    }
    if (folder.is_open()) {
        run.state = state_of(folder.get(), path, note, here);
    }
    return run;
}

/// Why a run whose lock is free here may be one that is written all the same; empty: it is none.
std::string why_perhaps_written(const std::string& run, const MachineIdentity& here) {
    const std::optional<RunNote> note = read_run_note(run);
    switch (state_of_unlocked(run, note, here)) {
        case RunState::Held:
        case RunState::Over:
        case RunState::Dead:
            break;
        case RunState::Elsewhere:
            return fmt::format(
                "a ddprun on {} made it, and whether that runs cannot be seen from here ({}); use "
                "ddpctl clean there, or remove it by hand if it is over",
                note->machine.name.empty() ? "another machine" : note->machine.name, here.name);
        case RunState::Unclear:
            return "it has no run.json to tell which machine made it; remove it by hand if it is "
                   "over";
    }
    return {};
}

/// `path` goes, and is called otherwise while it does. Why not; empty: it is gone.
std::string remove_locked(const std::string& path, bool is_aside) {
    const std::string aside = is_aside ? path : path + std::string(kRemoved);
    if (!is_aside && std::rename(path.c_str(), aside.c_str()) != 0) {
        return system_error(errno, "renaming it").what;
    }
    std::error_code failure;
    fs::remove_all(aside, failure);  // removes links, follows none
    return failure ? fmt::format("removing {}: {}", aside, failure.message()) : std::string();
}

/// Removes the folder `name`, and says in `result` why not. True: it is gone, or could be.
bool remove_folder(const std::string& log_dir, const std::string& name, bool only_says,
                   const MachineIdentity& here, RunsRemoved& result) {
    const std::string path = log_dir + "/" + name;
    const auto say = [&name](std::vector<std::string>& list, const std::string& why) {
        list.push_back(fmt::format("{}: {}", name, why));
        return false;
    };
    const UniqueFd folder = open_own_folder(path);
    if (!folder.is_open()) {
        return say(result.failed, "it is no folder of this user's any more");
    }
    if (::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK ? say(result.left, "its ddprun runs")
                                    : say(result.failed, system_error(errno, "locking it").what);
    }
    // One on its way out was found to be over before, and may have lost its note.
    const bool is_aside = name.ends_with(kRemoved);
    if (!is_aside) {
        if (const std::string why = why_perhaps_written(path, here); !why.empty()) {
            return say(result.unsure, why);
        }
    }
    if (only_says) {
        return true;
    }
    const std::string why = remove_locked(path, is_aside);
    return why.empty() || say(result.failed, why);
}

/// Removes what an earlier remove_folder() could not finish.
void remove_leftovers(const std::string& log_dir, const MachineIdentity& here,
                      RunsRemoved& result) {
    std::vector<std::string> leftovers;
    visit_folder(log_dir, [&](const fs::path& entry) {
        const std::string name = entry.filename().string();
        if (name.ends_with(kRemoved) &&
            is_run_name(std::string_view(name).substr(0, name.size() - kRemoved.size()))) {
            leftovers.push_back(name);
        }
    });
    for (const std::string& name : leftovers) {
        remove_folder(log_dir, name, false, here, result);
    }
}

std::string text_of(const RunNote& note) {
    return run_note_json(note).dump(1, ' ', false,
                                    nlohmann::ordered_json::error_handler_t::replace) +
           "\n";
}

/// The same, with as much of the verdict's text as fits into the block.
std::string short_text_of(RunNote note) {
    const std::size_t most = LogLimits().run_note_bytes_max;
    std::string text = text_of(note);
    // A character that the cut splits is replaced by one that may be longer.
    while (text.size() > most && !note.text.empty()) {
        const std::size_t over = text.size() - most;
        note.text.resize(note.text.size() - std::min(note.text.size(), over));
        text = text_of(note);
    }
    return text;
}

/// In a folder that several users share the link is one user's: the others go without.
Result<void> link_latest(const std::string& run) {
    const std::size_t slash = run.rfind('/');
    const std::string link = run.substr(0, slash) + std::string(kLatest);
    struct stat status {};
    if (::lstat(link.c_str(), &status) == 0 && status.st_uid != ::geteuid()) {
        return {};
    }
    return replace_link(link, run.substr(slash + 1));
}

void remove_dead_link(const std::string& log_dir) {
    const std::string link = log_dir + std::string(kLatest);
    struct stat status {};
    if (::lstat(link.c_str(), &status) == 0 && S_ISLNK(status.st_mode) &&
        status.st_uid == ::geteuid() && ::stat(link.c_str(), &status) != 0 && errno == ENOENT) {
        ::unlink(link.c_str());
    }
}

}  // namespace

void add_lost(nlohmann::ordered_json& object, const std::vector<LostLog>& lost) {
    for (const LostLog& one : lost) {
        object["log_lost"].push_back({{"rank", one.rank}, {"lines", one.lines}, {"why", one.why}});
    }
}

std::vector<LostLog> lost_in(const nlohmann::json& note) {
    std::vector<LostLog> found;
    const auto list = note.find("log_lost");
    if (list == note.end() || !list->is_array()) {
        return found;
    }
    for (const nlohmann::json& one : *list) {
        if (one.is_object() && one.contains("rank") && one["rank"].is_number_integer() &&
            one.contains("lines") && one["lines"].is_number_integer()) {
            found.push_back({.rank = one["rank"].get<int>(),
                             .lines = one["lines"].get<std::uint64_t>(),
                             .why = rdzv::text_in(one, "why")});
        }
    }
    return found;
}

nlohmann::ordered_json run_note_json(const RunNote& note) {
    nlohmann::ordered_json object = {{"program", note.program},
                                     {"job", note.job},
                                     {"hostname", note.hostname},
                                     {"pid", note.pid},
                                     {"started_ms", note.started.count()}};
    if (!note.rendezvous.empty()) {
        object["rendezvous"] = note.rendezvous;
    }
    if (note.ended) {
        object["ended_ms"] = note.ended->count();
    }
    if (note.exit_code) {
        object["exit_code"] = *note.exit_code;
    }
    if (!note.text.empty()) {
        object["text"] = note.text;
    }
    if (note.saving) {
        object["saving_ms"] = note.saving->count();
    }
    add_lost(object, note.lost);
    if (!note.machine.boot_id.empty() || !note.machine.machine_id.empty()) {
        object["machine"] = {{"name", note.machine.name},
                             {"boot_id", note.machine.boot_id},
                             {"machine_id", note.machine.machine_id}};
    }
    return object;
}

std::optional<RunNote> parse_run_note(std::string_view text) {
    const nlohmann::json object = rdzv::parse_shallow_json(text);
    if (!object.is_object() || !object.contains("program") || !object["program"].is_string() ||
        !object.contains("started_ms")) {
        return std::nullopt;
    }
    const auto number_of = [&object](const char* key) -> std::optional<std::int64_t> {
        return object.contains(key) && object[key].is_number_integer()
                   ? std::optional(object[key].get<std::int64_t>())
                   : std::nullopt;
    };
    RunNote note{.program = rdzv::text_in(object, "program"),
                 .job = rdzv::text_in(object, "job"),
                 .hostname = rdzv::text_in(object, "hostname"),
                 .pid = static_cast<int>(number_of("pid").value_or(0)),
                 .rendezvous = rdzv::text_in(object, "rendezvous"),
                 .started = Milliseconds(number_of("started_ms").value_or(0))};
    if (const auto ended = number_of("ended_ms")) {
        note.ended = Milliseconds(*ended);
    }
    if (const auto code = number_of("exit_code")) {
        note.exit_code = static_cast<int>(*code);
    }
    note.text = rdzv::text_in(object, "text");
    if (const auto saving = number_of("saving_ms"); saving && *saving >= 0) {
        note.saving = Milliseconds(*saving);
    }
    note.lost = lost_in(object);
    if (const auto machine = object.find("machine"); machine != object.end()) {
        note.machine = {.name = rdzv::text_in(*machine, "name"),
                        .boot_id = rdzv::text_in(*machine, "boot_id"),
                        .machine_id = rdzv::text_in(*machine, "machine_id")};
    } else {
        // Several ddpruns of a node have a number behind its name, all but the first.
        note.machine.name = note.hostname.substr(0, note.hostname.find('#'));
    }
    return note;
}

std::optional<RunNote> read_run_note(const std::string& run) {
    return parse_run_note(read_error_file(note_path(run), Limits{}.error_file_bytes_max));
}

bool is_run_name(std::string_view name, std::string_view job) {
    if (name.size() <= kRandomDigits + 1 ||
        name.find_first_not_of("0123456789abcdef", name.size() - kRandomDigits) !=
            std::string_view::npos ||
        name[name.size() - kRandomDigits - 1] != '_') {
        return false;
    }
    return job.empty() || name.substr(0, name.size() - kRandomDigits - 1) == job;
}

std::optional<Milliseconds> last_saving(const std::string& log_dir, const std::string& job) {
    for (const FoundRun& run : runs_in(log_dir, job)) {
        if (run.note.saving) {
            return run.note.saving;
        }
    }
    return std::nullopt;
}

RunFolder::RunFolder(std::string path, RunNote note)
    : path_(std::move(path)), note_(std::move(note)) {}

Result<void> RunFolder::begin(Milliseconds now) {
    if (has_begun_ || path_.empty()) {
        return {};
    }
    has_begun_ = true;
    note_.started = now;
    Result<UniqueFd> held = hold_folder(path_);
    const Result<void> noted = write_note();
    reserve_file(note_path(path_), LogLimits().run_note_bytes_max);
    const Result<void> linked = link_latest(path_);
    if (!held) {
        return held.error();
    }
    lock_ = *std::move(held);
    return noted ? linked : noted;
}

Result<void> RunFolder::end(Milliseconds now, int exit_code, const std::string& text,
                            std::optional<Milliseconds> saving, std::vector<LostLog> lost) {
    // A run without workers has a folder if its report was kept there.
    std::error_code failure;
    if (path_.empty() || !fs::is_directory(path_, failure)) {
        return {};
    }
    const Result<void> begun = begin(now);
    ::unlink((path_ + "/" + kRunSocketName).c_str());  // if it answered anybody
    note_.ended = now;
    note_.exit_code = exit_code;
    note_.text = text;
    note_.saving = saving;
    note_.lost = std::move(lost);
    const Result<void> noted = write_note();
    return begun ? noted : begun;
}

/// A full disk takes no second file; the first file has its block already, which is kept for this.
Result<void> RunFolder::write_note() const {
    const std::string path = note_path(path_);
    const Result<void> replaced = replace_file(path, text_of(note_));
    if (replaced || !note_.exit_code) {
        return replaced;
    }
    return overwrite_file(path, short_text_of(note_)) ? Result<void>() : replaced;
}

std::optional<FoundRun> run_in(const std::string& folder) {
    const fs::path path(folder);
    return run_at(folder, path.filename().string(), read_machine_identity(), RunsOf::ThisUser);
}

std::vector<FoundRun> runs_in(const std::string& log_dir, const std::string& job, RunsOf whose) {
    std::vector<FoundRun> runs;
    const MachineIdentity here = read_machine_identity();
    visit_folder(log_dir, [&](const fs::path& entry) {
        const std::string name = entry.filename().string();
        if (!is_run_name(name, job)) {
            return;
        }
        if (std::optional<FoundRun> run = run_at(log_dir + "/" + name, name, here, whose)) {
            runs.push_back(*std::move(run));
        }
    });
    std::sort(runs.begin(), runs.end(), [](const FoundRun& left, const FoundRun& right) {
        return std::tie(right.note.started, left.name) < std::tie(left.note.started, right.name);
    });
    return runs;
}

RunsRemoved remove_runs(const std::string& log_dir, const std::vector<FoundRun>& runs,
                        std::size_t kept, bool only_says) {
    RunsRemoved result;
    const MachineIdentity here = read_machine_identity();
    for (std::size_t i = kept; i < runs.size(); ++i) {
        if (remove_folder(log_dir, runs[i].name, only_says, here, result)) {
            result.removed.push_back(runs[i].name);
        }
    }
    if (!only_says) {
        remove_leftovers(log_dir, here, result);
        remove_dead_link(log_dir);
    }
    return result;
}

}  // namespace ddprun::agent
