#include "launcher/ctl/log_folder.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "agent/output/run_folder.hpp"
#include "base/os/visit_folder.hpp"
#include "base/whole_number.hpp"

namespace ddprun::launcher {

namespace {

namespace fs = std::filesystem;

}  // namespace

Result<std::string> find_newest_run(const std::string& log_dir, const std::string& job,
                                    const std::string& node) {
    for (const agent::FoundRun& run : agent::runs_in(log_dir, job, agent::RunsOf::Everybody)) {
        std::error_code failure;
        fs::path folder = fs::path(log_dir) / run.name;
        if ((node.empty() || run.note.hostname == node) &&
            fs::is_directory(folder / "by-rank", failure)) {
            return folder.string();
        }
    }
    return Error{ErrorCode::NotFound,
                 fmt::format("{} has no logs of {}{} on this node; name the folder that ddprun was "
                             "given with --log-dir",
                             log_dir, job.empty() ? "any run" : "the job " + job,
                             node.empty() ? "" : " and its node " + node)};
}

std::vector<std::uint64_t> generations_of_run(const std::string& run) {
    std::vector<std::uint64_t> generations;
    visit_folder(run, [&generations](const fs::path& path) {
        constexpr std::string_view kStart = "attempt_";
        const std::string name = path.filename().string();
        std::error_code failure;
        if (name.starts_with(kStart) && fs::is_directory(path / "by-rank", failure)) {
            if (const auto number = whole_number<std::uint64_t>(name.substr(kStart.size()))) {
                generations.push_back(*number + 1);
            }
        }
    });
    std::sort(generations.begin(), generations.end());
    return generations;
}

std::string folder_of_generation(const std::string& run, std::uint64_t generation) {
    return fmt::format("{}/attempt_{}", run, generation - 1);
}

std::vector<int> ranks_of_run(const std::string& run) {
    std::vector<int> ranks;
    visit_folder(run + "/by-rank", [&ranks](const fs::path& path) {
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
