#include "launcher/ctl/bundle.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/output/event_file.hpp"
#include "agent/output/worker_output_files.hpp"
#include "base/limits.hpp"
#include "base/os/own_variable.hpp"
#include "base/os/read_files.hpp"
#include "base/os/unique_fd.hpp"
#include "base/os/unix_time.hpp"
#include "base/watch_limits.hpp"
#include "launcher/ctl/local_runs.hpp"
#include "launcher/ctl/log_folder.hpp"
#include "launcher/ctl/stacks.hpp"
#include "launcher/doctor/doctor_text.hpp"
#include "launcher/machine/fingerprint.hpp"
#include "launcher/machine/read_machine_facts.hpp"
#include "rendezvous/events/event.hpp"

namespace ddprun::launcher {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int kBundleSchema = 1;

/// The end of a file, from a line's beginning on.
struct FileEnd {
    std::uint64_t bytes = 0;  ///< of the whole file
    std::string text;
};

std::optional<FileEnd> end_of_file(const std::string& path) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::error_code failure;
    const std::uint64_t size = fs::file_size(path, failure);
    if (!file.is_open() || failure) {
        return std::nullopt;
    }
    FileEnd end{.bytes = size, .text = {}};
    const std::uint64_t most = WatchLimits{}.bundle_part_bytes_max;
    const std::uint64_t from = size > most ? size - most : 0;
    end.text = read_part(file.get(), size - from, static_cast<off_t>(from));
    if (from > 0) {
        end.text.erase(0, end.text.find('\n') + 1);
    }
    return end;
}

/// The object in that file; null: there is none.
ordered_json object_in(const std::string& path) {
    const std::optional<std::string> text = read_whole(path);
    ordered_json object = text ? ordered_json::parse(*text, nullptr, false) : ordered_json();
    return object.is_object() ? std::move(object) : ordered_json();
}

/// The newest events, and how many older ones there are.
void add_events(const std::string& folder, ordered_json& bundle) {
    std::deque<ordered_json> events;
    std::uint64_t left_out = 0;
    std::ifstream file(folder + "/" + agent::kEventsName);
    for (std::string line; std::getline(file, line);) {
        ordered_json event = ordered_json::parse(line, nullptr, false);
        if (!event.is_object()) {
            continue;
        }
        events.push_back(std::move(event));
        if (events.size() > Limits{}.events_kept_max) {
            events.pop_front();
            left_out += 1;
        }
    }
    bundle["events"] = std::vector<ordered_json>(events.begin(), events.end());
    bundle["events_left_out"] = left_out;
}

ordered_json merged_json(const std::vector<RankStacks>& stacks) {
    ordered_json list = ordered_json::array();
    for (MergedStacks& one : merge_stacks(stacks)) {
        one.text.resize(std::min(one.text.size(), WatchLimits{}.bundle_part_bytes_max));
        list.push_back({{"ranks", one.ranks}, {"title", one.title}, {"text", one.text}});
    }
    return list;
}

/// Reads the stacks of the newest hang whose stacks were saved; null: there was none.
ordered_json saved_stacks(const std::string& folder) {
    std::vector<std::uint64_t> generations = generations_of_run(folder);
    std::reverse(generations.begin(), generations.end());
    for (const std::uint64_t generation : generations) {
        const std::string of = folder_of_generation(folder, generation);
        std::vector<RankStacks> stacks;
        for (const int rank : ranks_of_run(of)) {
            if (auto text = read_whole(fmt::format("{}/stacks/rank{}.txt", of, rank))) {
                stacks.push_back({.rank = rank, .text = *std::move(text)});
            }
        }
        if (!stacks.empty()) {
            return {{"generation", generation}, {"merged", merged_json(stacks)}};
        }
    }
    return nullptr;
}

/// Adds the logs of the newest two generations: the last one, and the one whose end led to it.
void add_logs(const std::string& folder, ordered_json& bundle) {
    constexpr std::size_t kGenerations = 2;
    ordered_json logs = ordered_json::array();
    std::size_t bytes = 0;
    std::uint64_t left_out = 0;
    std::vector<std::uint64_t> generations = generations_of_run(folder);
    std::reverse(generations.begin(), generations.end());
    generations.resize(std::min(generations.size(), kGenerations));
    for (const std::uint64_t generation : generations) {
        const std::string of = folder_of_generation(folder, generation);
        for (const int rank : ranks_of_run(of)) {
            for (const std::string_view stream : {"stdout", "stderr", "output"}) {
                std::optional<FileEnd> end =
                    end_of_file(fmt::format("{}/{}.log", folder_of_rank(of, rank), stream));
                if (!end || end->bytes == 0) {
                    continue;
                }
                if (bytes + end->text.size() > WatchLimits{}.bundle_logs_bytes_max) {
                    left_out += 1;
                    continue;
                }
                bytes += end->text.size();
                logs.push_back({{"generation", generation},
                                {"rank", rank},
                                {"stream", stream},
                                {"bytes", end->bytes},
                                {"end", std::move(end->text)}});
            }
        }
    }
    bundle["logs"] = std::move(logs);
    bundle["logs_left_out"] = left_out;
}

/// `status`: what the run's ddprun says; null: it is over.
ordered_json fingerprint_json(const ordered_json& status) {
    FingerprintPlaces places;
    if (status.is_object()) {
        const std::string executable = status.value("executable", "");
        const bool is_python = fs::path(executable).filename().string().rfind("python", 0) == 0;
        (is_python ? places.python : places.program) = executable;
    }
    places.python_path = own_variable("PYTHONPATH");
    places.home = own_variable("HOME");
    const rdzv::Fingerprint made_of = read_fingerprint(places, Limits{});
    return {{"program", made_of.program},
            {"python", made_of.python},
            {"torch", made_of.torch},
            {"nccl", made_of.nccl},
            {"driver", made_of.driver}};
}

bool may_write_beside(const std::string& path) {
    const std::string folder = fs::path(path).parent_path().string();
    return ::faccessat(AT_FDCWD, folder.empty() ? "." : folder.c_str(), W_OK | X_OK, AT_EACCESS) ==
           0;
}

/// Into what has that name: a device, or a file that is for this user's eyes only from then on.
Result<void> write_into(const std::string& path, const std::string& bundle) {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
    struct stat status {};
    if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
        return system_error(errno, "writing " + path);
    }
    if (S_ISREG(status.st_mode) &&
        (::fchmod(file.get(), 0600) != 0 || ::ftruncate(file.get(), 0) != 0)) {
        return system_error(errno, "making " + path + " empty and this user's alone");
    }
    return agent::append_to_log(file.get(), bundle, path);
}

}  // namespace

Result<std::string> bundle_of(const std::string& folder) {
    std::error_code failure;
    if (!fs::is_directory(folder, failure)) {
        return Error{ErrorCode::NotFound, fmt::format("{} is no folder of a run", folder)};
    }
    ordered_json bundle;
    bundle["v"] = kBundleSchema;
    bundle["made"] = rdzv::utc_text(unix_now());
    bundle["run"] = object_in(folder + "/run.json");
    bundle["report"] = object_in(folder + "/report.json");
    const Result<std::string> status = ask_run(folder);
    bundle["status"] = status ? ordered_json::parse(*status, nullptr, false) : ordered_json();
    add_events(folder, bundle);
    const Result<TakenStacks> taken =
        status ? take_stacks({folder}, {}) : Result<TakenStacks>(status.error());
    bundle["stacks_now"] = taken ? merged_json(taken->ranks) : ordered_json();
    bundle["stacks_of_hang"] = saved_stacks(folder);
    add_logs(folder, bundle);
    bundle["fingerprint"] = fingerprint_json(bundle["status"]);
    bundle["machine"] =
        ordered_json::parse(doctor_json(check_machine(read_machine_facts())), nullptr, false);
    return bundle.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<void> write_bundle(const std::string& path, const std::string& bundle) {
    struct stat status {};
    const bool is_there = ::lstat(path.c_str(), &status) == 0;
    if (is_there && S_ISLNK(status.st_mode)) {
        return system_error(ELOOP, "writing " + path);
    }
    if (!is_there || (S_ISREG(status.st_mode) && may_write_beside(path))) {
        return agent::put_file(path, bundle, 0600);
    }
    return write_into(path, bundle);
}

}  // namespace ddprun::launcher
