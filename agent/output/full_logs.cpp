#include "agent/output/full_logs.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/whole_number.hpp"

namespace ddprun::agent {

std::vector<std::uint64_t> full_logs_of(const std::string& path) {
    const std::filesystem::path log(path);
    const std::string start = log.filename().string() + ".";
    std::vector<std::uint64_t> numbers;
    std::error_code failure;
    for (std::filesystem::directory_iterator it(log.parent_path(), failure), end;
         !failure && it != end; it.increment(failure)) {
        const std::string name = it->path().filename().string();
        if (!name.starts_with(start)) {
            continue;
        }
        if (const auto number = whole_number<std::uint64_t>(name.substr(start.size()))) {
            numbers.push_back(*number);
        }
    }
    std::sort(numbers.begin(), numbers.end());
    return numbers;
}

}  // namespace ddprun::agent
