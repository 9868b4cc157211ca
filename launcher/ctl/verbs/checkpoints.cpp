#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "base/text_table.hpp"
#include "launcher/ctl/json_field.hpp"
#include "launcher/ctl/runs_text.hpp"
#include "launcher/ctl/verbs/verbs.hpp"
#include "worker_runtime/checkpoint/checkpoint_folder.hpp"
#include "worker_runtime/checkpoint/verification.hpp"

namespace ddprun::launcher {

namespace {

using worker::CheckpointOutline;

struct CheckpointsOptions {
    std::string action;
    std::string dir;
    std::optional<std::int64_t> step;
    bool wants_json = false;
};

std::string bytes_text(std::uint64_t bytes) {
    constexpr double kUnit = 1024;
    constexpr std::array kNames = {"KiB", "MiB", "GiB", "TiB"};
    double size = static_cast<double>(bytes) / kUnit;
    std::size_t name = 0;
    for (; size >= kUnit && name + 1 < kNames.size(); ++name) {
        size /= kUnit;
    }
    return fmt::format("{:.1f} {}", size, kNames[name]);
}

/// One checkpoint as it was found. `whole` fails with the file that is wrong and how.
struct Found {
    std::int64_t step = 0;
    Result<CheckpointOutline> whole;
};

/// How far the checkpoint's files are read, on a terminal, from the second second on.
class ReadingLine {
public:
    explicit ReadingLine(const Found& found) : found_(found) {}
    ReadingLine(const ReadingLine&) = delete;
    ReadingLine& operator=(const ReadingLine&) = delete;
    ~ReadingLine() {
        if (is_shown_) {
            fmt::print(stderr, "\r\x1b[K");
        }
    }

    void add(std::uint64_t bytes) {
        constexpr auto kEvery = std::chrono::seconds(1);
        read_ += bytes;
        const auto now = std::chrono::steady_clock::now();
        if (now - shown_ < kEvery || ::isatty(STDERR_FILENO) == 0) {
            return;
        }
        shown_ = now;
        is_shown_ = true;
        fmt::print(stderr, "\rstep {}: {} of {} read", found_.step, bytes_text(read_),
                   bytes_text(found_.whole->bytes));
    }

private:
    const Found& found_;
    std::uint64_t read_ = 0;
    std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
    bool is_shown_ = false;
};

std::vector<Found> find(const CheckpointsOptions& options, const std::vector<std::int64_t>& steps) {
    std::vector<Found> all;
    for (const std::int64_t step : steps) {
        Found found{.step = step, .whole = worker::outline_of_checkpoint(options.dir, step)};
        if (options.action == "verify" && found.whole) {
            ReadingLine line(found);
            const Result<void> verified = worker::verify_checkpoint(
                options.dir, step, [&line](std::uint64_t bytes) { line.add(bytes); });
            if (!verified) {
                found.whole = verified.error();
            }
        }
        all.push_back(std::move(found));
    }
    return all;
}

std::string found_text(const std::vector<Found>& all, const std::string& good) {
    std::vector<TableRow> rows = {{"STEP", "SAVED", "GENERATION", "RANKS", "SIZE", "STATE"}};
    for (const auto& [step, whole] : all) {
        rows.push_back(
            whole ? TableRow{std::to_string(step), run_time_text(whole->saved),
                             fmt::format("{}", whole->info.generation.value()),
                             std::to_string(whole->info.world_size), bytes_text(whole->bytes), good}
                  : TableRow{std::to_string(step), "-", "-", "-", "-",
                             "damaged: " + printable(whole.error().what, std::string::npos)});
    }
    return table_text(rows);
}

std::string found_json(const std::vector<Found>& all, const std::string& good) {
    std::string text;
    for (const auto& [step, whole] : all) {
        nlohmann::ordered_json object = {{"v", 1}, {"step", step}};
        if (whole) {
            object["state"] = good;
            object["saved_ms"] = whole->saved.count();
            object["generation"] = whole->info.generation.value();
            object["world_size"] = whole->info.world_size;
            object["bytes"] = whole->bytes;
        } else {
            object["state"] = "damaged";
            object["error"] = whole.error().what;
        }
        text +=
            object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    }
    return text;
}

/// `steps` are those of all checkpoints there, the newest first.
std::string why_none(const CheckpointsOptions& options, const std::vector<std::int64_t>& steps) {
    if (steps.empty()) {
        return options.dir + " has no checkpoint; name the folder in which the folders step-… are";
    }
    return fmt::format("{} has no checkpoint of step {}; it has those of steps {} to {}",
                       options.dir, *options.step, steps.back(), steps.front());
}

int show_checkpoints(const CheckpointsOptions& options) {
    const Result<std::vector<std::int64_t>> steps = worker::list_checkpoints(options.dir);
    if (!steps) {
        return complain(steps.error());
    }
    std::vector<std::int64_t> wanted = *steps;
    if (options.step) {
        std::erase_if(wanted, [&options](std::int64_t step) { return step != *options.step; });
    }
    if (wanted.empty()) {
        return complain_of_run({ErrorCode::NotFound, why_none(options, *steps)});
    }
    const std::string good = options.action == "verify" ? "verified" : "complete";
    const std::vector<Found> all = find(options, wanted);
    fmt::print("{}", options.wants_json ? found_json(all, good) : found_text(all, good));
    const bool are_whole = std::all_of(all.begin(), all.end(),
                                       [](const Found& found) { return found.whole.has_value(); });
    return are_whole ? kExitSuccess : kExitNo;
}

}  // namespace

Action declare_checkpoints(CLI::App& verb) {
    const auto options = std::make_shared<CheckpointsOptions>();
    verb.add_option("ACTION", options->action, "list, or verify")
        ->required()
        ->check(CLI::IsMember({"list", "verify"}));
    verb.add_option("DIR", options->dir, "the folder that a training saves its checkpoints in")
        ->required();
    add_value(verb, "--step", "N", options->step, "only the checkpoint of this step; default: all")
        ->check(at_least<std::int64_t>(0));
    verb.add_flag("--json", options->wants_json, "one object a line");
    verb.footer(R"(
DIR has the checkpoints of a training in C++ (ddprun::Checkpoints). The newest
comes first. list looks whether all files exist and have the right sizes;
verify also reads them and compares their checksums, while a training goes on,
too. The exit code is 1 if a checkpoint is damaged, or if there is none.

examples:
  ddpctl checkpoints list checkpoints
  ddpctl checkpoints verify checkpoints --step 1200
)");
    return [options] { return show_checkpoints(*options); };
}

}  // namespace ddprun::launcher
