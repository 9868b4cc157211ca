#include "agent/supervise/worker_command.hpp"

#include <array>

#include "base/template_text.hpp"

namespace ddprun::agent {

std::string substitute_local_rank(std::string_view text, LocalRank local_rank) {
    const std::array<TemplateName, 1> names{{{"local_rank", std::to_string(local_rank.value())}}};
    return substitute(text, names);
}

std::vector<std::string> worker_command(const std::vector<std::string>& command,
                                        LocalRank local_rank) {
    std::vector<std::string> result;
    result.reserve(command.size());
    for (const std::string& argument : command) {
        result.push_back(result.empty() ? argument : substitute_local_rank(argument, local_rank));
    }
    return result;
}

}  // namespace ddprun::agent
