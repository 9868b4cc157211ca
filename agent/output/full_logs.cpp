#include "agent/output/full_logs.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/os/visit_folder.hpp"
#include "base/whole_number.hpp"

namespace ddprun::agent {

std::vector<std::uint64_t> full_logs_of(const std::string& path) {
    const std::filesystem::path log(path);
    const std::string start = log.filename().string() + ".";
    std::vector<std::uint64_t> numbers;
    visit_folder(log.parent_path(), [&](const std::filesystem::path& entry) {
        const std::string name = entry.filename().string();
        const auto number = name.starts_with(start)
                                ? whole_number<std::uint64_t>(name.substr(start.size()))
                                : std::nullopt;
        if (number) {
            numbers.push_back(*number);
        }
    });
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

}  // namespace ddprun::agent
