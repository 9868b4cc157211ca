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

/// Those of `ranks` that run, or all; from what the run's ddprun says of itself.
Result<agent::StacksOrder> order_of(const std::string& status, const std::vector<int>& ranks) {
    const nlohmann::json run = nlohmann::json::parse(status, nullptr, false);
    agent::StacksOrder order;
    if (!run.is_object() || !run.contains("workers") || !run.contains("executable")) {
        return Error{ErrorCode::BadMessage,
                     "the ddprun of this run tells nothing of its workers; is it an older one?"};
    }
    order.program = run.value("executable", "");
    std::vector<int> there;
    for (const nlohmann::json& worker : run["workers"]) {
        const int rank = worker.value("rank", 0);
        const int pid = worker.value("pid", 0);
        const bool is_wanted =
            ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
        if (pid > 0) {
            there.push_back(rank);
        }
        if (pid > 0 && is_wanted) {
            order.workers.emplace_back(rank, pid);
        }
    }
    for (const int rank : ranks) {
        if (std::find(there.begin(), there.end(), rank) == there.end()) {
            return Error{ErrorCode::NotFound,
                         fmt::format("rank {} does not run here; those that do: {}", rank,
                                     there.empty() ? "none" : number_ranges(there))};
        }
    }
    if (order.workers.empty()) {
        return Error{ErrorCode::NotFound,
                     "no worker of this run is at work now; ddpctl status says what it waits for"};
    }
    return order;
}

}  // namespace

Result<TakenStacks> take_stacks(const std::string& folder, const std::vector<int>& ranks) {
    const Result<std::string> status = ask_run(folder);
    if (!status) {
        return status.error();
    }
    Result<agent::StacksOrder> order = order_of(*status, ranks);
    if (!order) {
        return order.error();
    }
    const FilesFolder files;
    if (files.path().empty()) {
        return system_error(errno, "making a folder for the stacks in $TMPDIR");
    }
    order->folder = files.path();
    order->timeout = WatchLimits{}.asked_stacks_timeout;
    order->bytes_max = Limits{}.stacks_bytes_max;
    Result<std::vector<std::string>> command = agent::stacks_command(*order);
    if (!command) {
        return command.error();
    }
    TakenStacks taken;
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
                                    taken.hint = agent::no_py_spy_text(order->program);
                                }
                            }});
    ProgramSpec spec;
    spec.command = *std::move(command);
    const Result<void> started = program.start(spec, order->timeout);
    if (!started) {
        return started.error();
    }
    io.run();
    for (const auto& [rank, pid] : order->workers) {
        std::optional<std::string> text = read_whole(agent::stacks_file(order->folder, rank));
        taken.ranks.push_back({.rank = rank, .text = std::move(text).value_or(std::string())});
    }
    return taken;
}

}  // namespace ddprun::launcher
