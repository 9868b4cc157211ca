#include "launcher/ctl/log_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "base/whole_number.hpp"

namespace ddprun::launcher {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRandomDigits = 8;  ///< behind the job's name and an underscore

template <typename Use>
void for_each_in(const std::string& folder, Use use) {
    std::error_code failure;
    for (fs::directory_iterator it(folder, failure), end; !failure && it != end;
         it.increment(failure)) {
        use(it->path());
    }
}

bool is_run_of(const std::string& name, const std::string& job) {
    if (name.size() <= kRandomDigits ||
        name.find_first_not_of("0123456789abcdef", name.size() - kRandomDigits) !=
            std::string::npos ||
        name[name.size() - kRandomDigits - 1] != '_') {
        return false;
    }
    return job.empty() || name.substr(0, name.size() - kRandomDigits - 1) == job;
}

/// When a worker was last started; none: it has no workers.
std::optional<fs::file_time_type> last_start(const fs::path& run) {
    std::error_code failure;
    const fs::file_time_type time = fs::last_write_time(run / "by-rank", failure);
    return failure ? std::nullopt : std::optional(time);
}

}  // namespace

Result<std::string> find_newest_run(const std::string& log_dir, const std::string& job) {
    std::string newest;
    std::optional<fs::file_time_type> newest_time;
    for_each_in(log_dir, [&](const fs::path& path) {
        if (!is_run_of(path.filename().string(), job)) {
            return;
        }
        const std::optional<fs::file_time_type> time = last_start(path);
        if (time && (!newest_time || *time > *newest_time)) {
            newest = path.string();
            newest_time = time;
        }
    });
    if (newest_time) {
        return newest;
    }
    return Error{ErrorCode::NotFound,
                 fmt::format("{} has no logs of {} on this node; name the folder that ddprun was "
                             "given with --log-dir",
                             log_dir, job.empty() ? "any run" : "the job " + job)};
}

std::vector<int> ranks_of_run(const std::string& run) {
    std::vector<int> ranks;
    for_each_in(run + "/by-rank", [&ranks](const fs::path& path) {
        if (const std::optional<int> rank = whole_number<int>(path.filename().string())) {
            ranks.push_back(*rank);
        }
    });
    std::sort(ranks.begin(), ranks.end());
    return ranks;
}

std::string folder_of_rank(const std::string& run, int rank) {
    std::error_code failure;
    const fs::path folder = fs::canonical(fmt::format("{}/by-rank/{}", run, rank), failure);
    return failure ? std::string() : folder.string();
}

bool is_run_over(const std::string& run) {
    std::error_code failure;
    return fs::exists(run + "/report.json", failure);
}

}  // namespace ddprun::launcher
