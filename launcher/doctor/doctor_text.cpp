#include "launcher/doctor/doctor_text.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace ddprun::launcher {

std::string doctor_text(const std::vector<Finding>& findings) {
    std::size_t result_width = 0;
    std::size_t check_width = 0;
    for (const Finding& finding : findings) {
        result_width = std::max(result_width, name_of(finding.result).size());
        check_width = std::max(check_width, finding.check.size());
    }
    std::string text;
    for (const Finding& finding : findings) {
        text += fmt::format("{:<{}}  {:<{}}  {}\n", name_of(finding.result), result_width,
                            finding.check, check_width, finding.what);
        if (!finding.todo.empty()) {
            text += fmt::format("{:<{}}  -> {}\n", "", result_width, finding.todo);
        }
    }
    return text;
}

std::string doctor_json(const std::vector<Finding>& findings) {
    nlohmann::ordered_json checks = nlohmann::ordered_json::array();
    for (const Finding& finding : findings) {
        checks.push_back({{"check", finding.check},
                          {"result", name_of(finding.result)},
                          {"what", finding.what},
                          {"todo", finding.todo}});
    }
    const nlohmann::ordered_json answer = {{"checks", std::move(checks)}};
    return answer.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::launcher
