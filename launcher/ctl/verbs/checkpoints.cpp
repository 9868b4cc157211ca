#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

#include "base/printable.hpp"
#include "launcher/ctl/json_field.hpp"
#include "launcher/ctl/runs_text.hpp"
#include "launcher/ctl/verbs/verbs.hpp"
#include "worker_runtime/checkpoint/checkpoint_files.hpp"
#include "worker_runtime/checkpoint/checkpoint_folder.hpp"
#include "worker_runtime/checkpoint/folder.hpp"
#include "worker_runtime/checkpoint/pins.hpp"
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

/// How far a checkpoint's files are read, on a terminal, from the second second on.
class ReadingLine {
public:
    ReadingLine(std::int64_t step, std::uint64_t bytes) : step_(step), bytes_(bytes) {}
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
        fmt::print(stderr, "\rstep {}: {} of {} read\x1b[K", step_, bytes_text(read_),
                   bytes_text(bytes_));
    }

private:
    std::int64_t step_;
    std::uint64_t bytes_;
    std::uint64_t read_ = 0;
    std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
    bool is_shown_ = false;
};

Result<CheckpointOutline> look(const CheckpointsOptions& options, std::int64_t step) {
    const Result<CheckpointOutline> outline = worker::outline_of_checkpoint(options.dir, step);
    if (!outline || options.action != "verify") {
        return outline;
    }
    ReadingLine line(step, outline->bytes);
    const Result<void> verified = worker::verify_checkpoint(
        options.dir, step, [&line](std::uint64_t bytes) { line.add(bytes); });
    return verified ? outline : Result<CheckpointOutline>(verified.error());
}

/// Identifies the folder that has a checkpoint's name now; 0: none has.
ino_t folder_of(const CheckpointsOptions& options, std::int64_t step) {
    struct stat status {};
    const std::string path = worker::path_of(options.dir, worker::step_folder_name(step));
    return ::stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

/// Looks again if a training has replaced the checkpoint meanwhile. Returns nothing if it has
/// removed the checkpoint.
std::optional<Result<CheckpointOutline>> look_while_saved(const CheckpointsOptions& options,
                                                          std::int64_t step) {
    constexpr int kTries = 3;
    ino_t before = folder_of(options, step);
    for (int i = 1; before != 0; ++i) {
        Result<CheckpointOutline> found = look(options, step);
        const ino_t after = folder_of(options, step);
        if (found || after == before || i == kTries) {
            return found;
        }
        before = after;
    }
    return std::nullopt;
}

/// "verified", "complete", "damaged" or, of files that may be whole, "unreadable".
std::string state_of(const CheckpointsOptions& options, const Result<CheckpointOutline>& found) {
    if (found) {
        return options.action == "verify" ? "verified" : "complete";
    }
    const ErrorCode code = found.error().code;
    return code == ErrorCode::BadMessage || code == ErrorCode::NotFound ? "damaged" : "unreadable";
}

std::string row(const std::string& step, const std::string& saved, const std::string& generation,
                const std::string& ranks, const std::string& size, const std::string& state) {
    return fmt::format("{:<12}  {:<19}  {:<10}  {:<5}  {:<10}  {}\n", step, saved, generation,
                       ranks, size, state);
}

std::string found_text(std::int64_t step, const Result<CheckpointOutline>& found,
                       const std::string& state) {
    if (!found) {
        return row(std::to_string(step), "-", "-", "-", "-",
                   state + ": " + printable(found.error().what, std::string::npos));
    }
    return row(std::to_string(step), run_time_text(found->saved),
               fmt::format("{}", found->generation.value()), std::to_string(found->world_size),
               bytes_text(found->bytes), state);
}

std::string found_json(std::int64_t step, const Result<CheckpointOutline>& found,
                       const std::string& state, bool is_pinned) {
    nlohmann::ordered_json object = {
        {"v", 1}, {"step", step}, {"state", state}, {"pinned", is_pinned}};
    if (found) {
        object["saved_ms"] = found->saved.count();
        object["generation"] = found->generation.value();
        object["world_size"] = found->world_size;
        object["bytes"] = found->bytes;
    } else {
        object["error"] = found.error().what;
    }
    return json_line(object);
}

/// `steps` are those of all checkpoints there, the newest first.
std::string why_none(const CheckpointsOptions& options, const std::vector<std::int64_t>& steps) {
    if (steps.empty()) {
        return options.dir + " has no checkpoint; name the folder in which the folders step-… are";
    }
    return fmt::format("{} has no checkpoint of step {}; it has those of steps {} to {}",
                       options.dir, *options.step, steps.back(), steps.front());
}

int change_pin(const CheckpointsOptions& options) {
    if (!options.step) {
        return complain({ErrorCode::InvalidArgument,
                         fmt::format("no step to {} is named; write ddpctl checkpoints {} {} STEP",
                                     options.action, options.action, options.dir)});
    }
    const Result<void> changed = options.action == "pin"
                                     ? worker::pin_checkpoint(options.dir, *options.step)
                                     : worker::unpin_checkpoint(options.dir, *options.step);
    return changed ? kExitSuccess : complain_of_run(changed.error());
}

int show_checkpoints(const CheckpointsOptions& options) {
    const Result<std::vector<std::int64_t>> steps = worker::list_checkpoints(options.dir);
    if (!steps) {
        return complain({ErrorCode::InvalidArgument, steps.error().what});
    }
    std::vector<std::int64_t> wanted = *steps;
    if (options.step) {
        std::erase_if(wanted, [&options](std::int64_t step) { return step != *options.step; });
    }
    if (wanted.empty()) {
        return complain_of_run({ErrorCode::NotFound, why_none(options, *steps)});
    }
    bool goes_on = options.wants_json ||
                   write_out(row("STEP", "SAVED", "GENERATION", "RANKS", "SIZE", "STATE"));
    bool are_whole = true;
    for (std::size_t i = 0; goes_on && i < wanted.size(); ++i) {
        const std::optional<Result<CheckpointOutline>> found = look_while_saved(options, wanted[i]);
        if (!found) {
            continue;
        }
        are_whole = are_whole && found->has_value();
        const std::string state = state_of(options, *found);
        const bool is_pinned =
            worker::is_pinned(worker::path_of(options.dir, worker::step_folder_name(wanted[i])));
        goes_on = write_out(options.wants_json ? found_json(wanted[i], *found, state, is_pinned)
                                               : found_text(wanted[i], *found,
                                                            state + (is_pinned ? ", pinned" : "")));
    }
    return are_whole ? kExitSuccess : kExitNo;
}

}  // namespace

Action declare_checkpoints(CLI::App& verb) {
    const auto options = std::make_shared<CheckpointsOptions>();
    verb.add_option("ACTION", options->action, "list, verify, pin, or unpin")
        ->required()
        ->check(CLI::IsMember({"list", "verify", "pin", "unpin"}));
    verb.add_option("DIR", options->dir, "the folder that a training saves its checkpoints in")
        ->required();
    constexpr const char* kStepHelp = "only the checkpoint of this step; default: all";
    CLI::Option* const step =
        verb.add_option("STEP", options->step, kStepHelp)->check(at_least<std::int64_t>(0));
    add_value(verb, "--step", "N", options->step, kStepHelp)
        ->check(at_least<std::int64_t>(0))
        ->excludes(step);
    verb.add_flag("--json", options->wants_json, "one object a line");
    verb.footer(R"(
DIR has the checkpoints of ddprun::Checkpoints in C++ or Python. The newest
comes first. list looks whether all files exist and have the right sizes;
verify also reads them and compares their checksums, while a training goes on,
too. The exit code is 1 if a checkpoint is damaged, cannot be read, or if there
is none. pin keeps a training from removing the checkpoint of a step; unpin
gives it free again.

examples:
  ddpctl checkpoints list checkpoints
  ddpctl checkpoints verify checkpoints --step 1200
  ddpctl checkpoints pin checkpoints 1200
)");
    return [options] {
        const bool is_look = options->action == "list" || options->action == "verify";
        return is_look ? show_checkpoints(*options) : change_pin(*options);
    };
}

}  // namespace ddprun::launcher
