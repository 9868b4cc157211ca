#include "agent/output/line_prefix.hpp"

#include <array>

#include <fmt/format.h>

#include "base/template_text.hpp"

namespace ddprun::agent {

namespace {

constexpr std::string_view kTorchrunDefault = "[${role_name}${local_rank}]:";

}  // namespace

std::string node_prefix(std::string_view hostname, Rank rank) {
    return fmt::format("[{} {}] ", hostname, rank.value());
}

std::string torchrun_prefix(std::string_view text, std::string_view role, std::string_view hostname,
                            Rank rank, LocalRank local_rank) {
    const std::array<TemplateName, 4> names{{{"role_name", std::string(role)},
                                             {"hostname", std::string(hostname)},
                                             {"rank", std::to_string(rank.value())},
                                             {"local_rank", std::to_string(local_rank.value())}}};
    return substitute(text.empty() ? kTorchrunDefault : text, names);
}

}  // namespace ddprun::agent
