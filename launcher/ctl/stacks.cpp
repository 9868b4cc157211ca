#include "launcher/ctl/stacks.hpp"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "agent/process/stacks_program.hpp"
#include "base/limits.hpp"
#include "base/number_ranges.hpp"
#include "base/os/helper.hpp"
#include "base/os/read_files.hpp"
#include "base/watch_limits.hpp"
#include "launcher/ctl/local_runs.hpp"

namespace ddprun::launcher {

namespace {

namespace fs = std::filesystem;

/// A folder for the files, gone with everything in it at the end.
class FilesFolder {
public:
    FilesFolder() {
        std::error_code failure;
        path_ = fs::temp_directory_path(failure) / "ddprun-stacks-XXXXXX";
        if (failure || ::mkdtemp(path_.data()) == nullptr) {
            path_.clear();
        }
    }
    ~FilesFolder() {
        std::error_code ignored;
        if (!path_.empty()) {
            fs::remove_all(path_, ignored);
        }
    }
    FilesFolder(const FilesFolder&) = delete;
    FilesFolder& operator=(const FilesFolder&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }

private:
    std::string path_;
};

/// All workers that run, from what the ddprun of a run says of itself.
Result<void> add_workers(const std::string& status, agent::StacksOrder& order, int& world_size) {
    const nlohmann::json run = nlohmann::json::parse(status, nullptr, false);
    if (!run.is_object() || !run.contains("workers") || !run.contains("executable")) {
        return Error{ErrorCode::BadMessage,
                     "the ddprun of this run tells nothing of its workers; is it an older one?"};
    }
    order.program = run.value("executable", "");
    world_size = run.value("world_size", 0);
    for (const nlohmann::json& worker : run["workers"]) {
        if (const int pid = worker.value("pid", 0); pid > 0) {
            order.workers.emplace_back(worker.value("rank", 0), pid);
        }
    }
    return {};
}

/// Leaves those of `ranks`, or all if these are empty.
Result<void> keep_ranks(const std::vector<int>& ranks, agent::StacksOrder& order) {
    std::sort(order.workers.begin(), order.workers.end());
    std::vector<int> there;
    for (const auto& [rank, pid] : order.workers) {
        there.push_back(rank);
    }
    for (const int rank : ranks) {
        if (std::find(there.begin(), there.end(), rank) == there.end()) {
            return Error{ErrorCode::NotFound,
                         fmt::format("rank {} does not run here; those that do: {}", rank,
                                     there.empty() ? "none" : number_ranges(there))};
        }
    }
    if (!ranks.empty()) {
        std::erase_if(order.workers, [&ranks](const auto& worker) {
            return std::find(ranks.begin(), ranks.end(), worker.first) == ranks.end();
        });
    }
    if (order.workers.empty()) {
        return Error{ErrorCode::NotFound,
                     "no worker of this run is at work now; ddpctl status says what it waits for"};
    }
    return {};
}

}  // namespace

Result<TakenStacks> take_stacks(const std::vector<std::string>& folders,
                                const std::vector<int>& ranks) {
    TakenStacks taken;
    agent::StacksOrder order;
    for (const std::string& folder : folders) {
        const Result<std::string> status = ask_run(folder);
        if (!status) {
            return status.error();
        }
        if (const Result<void> added = add_workers(*status, order, taken.world_size); !added) {
            return added.error();
        }
    }
    if (const Result<void> kept = keep_ranks(ranks, order); !kept) {
        return kept.error();
    }
    const FilesFolder files;
    if (files.path().empty()) {
        return system_error(errno, "making a folder for the stacks in $TMPDIR");
    }
    order.folder = files.path();
    order.timeout = WatchLimits{}.asked_stacks_timeout;
    order.bytes_max = Limits{}.stacks_bytes_max;
    Result<std::vector<std::string>> command = agent::stacks_command(order);
    if (!command) {
        return command.error();
    }
    boost::asio::io_context io{1};
    Helper program(io, {.on_child = [](int) {},
                        .on_end =
                            [&](const std::optional<siginfo_t>& end) {
                                io.stop();
                                if (!end) {
                                    taken.hint =
                                        "taking the stacks took too long; what is there is shown";
                                } else if (end->si_code == CLD_EXITED &&
                                           end->si_status == agent::kStacksWithoutPySpy) {
                                    taken.hint = agent::no_py_spy_text(order.program);
                                }
                            }});
    ProgramSpec spec;
    spec.command = *std::move(command);
    const Result<void> started = program.start(spec, order.timeout);
    if (!started) {
        return started.error();
    }
    io.run();
    for (const auto& [rank, pid] : order.workers) {
        std::optional<std::string> text = read_whole(agent::stacks_file(order.folder, rank));
        taken.ranks.push_back({.rank = rank, .text = std::move(text).value_or(std::string())});
    }
    return taken;
}

}  // namespace ddprun::launcher
