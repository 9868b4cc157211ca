#include "rendezvous/wire/node_sizes.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddprun::rdzv {

bool has_sizes(const JobSettings& settings) {
    return settings.node_unit > 1 || !settings.node_sizes.empty();
}

bool are_sizes_sound(const JobSettings& settings) {
    const std::vector<int>& sizes = settings.node_sizes;
    const int unit = settings.node_unit;
    if (settings.min_nodes < 1 || settings.min_nodes > settings.max_nodes || unit < 1) {
        return false;
    }
    if (sizes.empty()) {
        return settings.min_nodes % unit == 0 && settings.max_nodes % unit == 0;
    }
    const bool grows = std::adjacent_find(sizes.begin(), sizes.end(), [](int left, int right) {
                           return left >= right;
                       }) == sizes.end();
    return unit == 1 && grows && sizes.front() == settings.min_nodes &&
           sizes.back() == settings.max_nodes;
}

std::size_t largest_size(const JobSettings& settings, std::size_t nodes) {
    const auto most = static_cast<std::size_t>(settings.max_nodes);
    const std::size_t usable = std::min(nodes, most);
    if (usable < static_cast<std::size_t>(settings.min_nodes)) {
        return 0;
    }
    if (settings.node_sizes.empty()) {
        return usable - usable % static_cast<std::size_t>(settings.node_unit);
    }
    const auto above = std::upper_bound(settings.node_sizes.begin(), settings.node_sizes.end(),
                                        static_cast<int>(usable));
    return static_cast<std::size_t>(*std::prev(above));
}

bool is_size(const JobSettings& settings, int nodes) {
    const auto count = static_cast<std::size_t>(nodes);
    return nodes > 0 && largest_size(settings, count) == count;
}

std::optional<std::size_t> next_size(const JobSettings& settings, std::size_t nodes) {
    if (nodes >= static_cast<std::size_t>(settings.max_nodes)) {
        return std::nullopt;
    }
    if (nodes < static_cast<std::size_t>(settings.min_nodes)) {
        return static_cast<std::size_t>(settings.min_nodes);
    }
    if (settings.node_sizes.empty()) {
        const auto unit = static_cast<std::size_t>(settings.node_unit);
        return (nodes / unit + 1) * unit;
    }
    return static_cast<std::size_t>(*std::upper_bound(
        settings.node_sizes.begin(), settings.node_sizes.end(), static_cast<int>(nodes)));
}

std::string nnodes_of(const JobSettings& settings) {
    if (!settings.node_sizes.empty()) {
        return fmt::format("{}", fmt::join(settings.node_sizes, ","));
    }
    const std::string range = settings.min_nodes == settings.max_nodes
                                  ? fmt::format("{}", settings.min_nodes)
                                  : fmt::format("{}:{}", settings.min_nodes, settings.max_nodes);
    return settings.node_unit == 1 ? range
                                   : fmt::format("{} --node-unit {}", range, settings.node_unit);
}

}  // namespace ddprun::rdzv
