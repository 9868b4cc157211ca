#include "launcher/plan/placement.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "base/whole_number.hpp"

namespace ddprun::launcher {

namespace {

Error cannot_bind(std::string why) {
    return Error{ErrorCode::InvalidArgument, std::move(why)};
}

std::vector<const Cpu*> allowed_of_node(const Topology& topology, int node) {
    std::vector<const Cpu*> cpus;
    for (const Cpu& cpu : topology.cpus) {
        if (cpu.is_allowed && cpu.node == node) {
            cpus.push_back(&cpu);
        }
    }
    return cpus;
}

std::set<int> nodes_with_cpus(const Topology& topology) {
    std::set<int> nodes;
    for (const Cpu& cpu : topology.cpus) {
        if (cpu.is_allowed) {
            nodes.insert(cpu.node);
        }
    }
    return nodes;
}

std::vector<int> indices(const std::vector<const Cpu*>& cpus) {
    std::vector<int> result;
    result.reserve(cpus.size());
    for (const Cpu* cpu : cpus) {
        result.push_back(cpu->index);
    }
    std::sort(result.begin(), result.end());
    return result;
}

/// A node belongs to the package of its lowest CPU.
std::vector<int> cpus_of_package(const Topology& topology, int node) {
    const int package = allowed_of_node(topology, node).front()->package;
    std::vector<int> result;
    for (const int other : nodes_with_cpus(topology)) {
        const std::vector<const Cpu*> cpus = allowed_of_node(topology, other);
        if (cpus.front()->package == package) {
            const std::vector<int> of_node = indices(cpus);
            result.insert(result.end(), of_node.begin(), of_node.end());
        }
    }
    std::sort(result.begin(), result.end());
    return result;
}

/// The CPUs of one node in groups, by the lowest CPU of each group, also where that is forbidden.
std::map<int, std::vector<int>> grouped(const std::vector<const Cpu*>& cpus, int Cpu::*group) {
    std::map<int, std::vector<int>> groups;
    for (const Cpu* cpu : cpus) {
        groups[cpu->*group].push_back(cpu->index);
    }
    return groups;
}

/// The turn of a place among those near the same node.
struct Turn {
    std::size_t number = 0;
    std::size_t of = 1;
};

Turn turn_of(const std::vector<int>& places, std::size_t place) {
    const int node = places[place];
    const auto here = places.begin() + static_cast<std::ptrdiff_t>(place);
    return {.number = static_cast<std::size_t>(std::count(places.begin(), here, node)),
            .of = static_cast<std::size_t>(std::count(places.begin(), places.end(), node))};
}

/// The cores are shared out evenly; the first places get one more where they do not divide.
Result<std::vector<int>> own_cores(const std::vector<const Cpu*>& cpus, int node, Turn turn) {
    const std::map<int, std::vector<int>> cores = grouped(cpus, &Cpu::core);
    const std::size_t each = cores.size() / turn.of;
    const std::size_t left = cores.size() % turn.of;
    if (each == 0) {
        return cannot_bind(
            fmt::format("NUMA node {} has {} core{} that this process may use, for "
                        "{} workers; use node, or fewer workers",
                        node, cores.size(), cores.size() == 1 ? "" : "s", turn.of));
    }
    const std::size_t first = turn.number * each + std::min(turn.number, left);
    const std::size_t count = each + (turn.number < left ? 1 : 0);
    std::vector<int> result;
    std::size_t position = 0;
    for (const auto& [lowest, members] : cores) {
        if (position >= first && position < first + count) {
            result.insert(result.end(), members.begin(), members.end());
        }
        ++position;
    }
    std::sort(result.begin(), result.end());
    return result;
}

/// Caches with most CPUs first, so that no worker gets a remainder before all whole ones are used.
std::vector<int> cpus_under_cache(const std::vector<const Cpu*>& cpus, Turn turn) {
    std::vector<std::vector<int>> caches;
    for (auto& [lowest, members] : grouped(cpus, &Cpu::cache)) {
        caches.push_back(members);
    }
    std::stable_sort(caches.begin(), caches.end(), [](const auto& left, const auto& right) {
        return left.size() > right.size();
    });
    return caches[turn.number % caches.size()];
}

std::optional<int> cpu_number(std::string_view text) {
    const std::optional<int> number = whole_number<int>(text);
    return number && *number >= 0 && *number < Limits{}.cpus_max ? number : std::nullopt;
}

}  // namespace

std::optional<BindingMode> binding_mode(std::string_view name) {
    constexpr std::array kNames = {
        std::pair{std::string_view{"node"}, BindingMode::Node},
        std::pair{std::string_view{"socket"}, BindingMode::Socket},
        std::pair{std::string_view{"exclusive"}, BindingMode::Exclusive},
        std::pair{std::string_view{"core-complex"}, BindingMode::CoreComplex},
    };
    for (const auto& [known, mode] : kNames) {
        if (name == known) {
            return mode;
        }
    }
    return std::nullopt;
}

std::vector<int> nodes_of_places(const std::vector<int>& gpu_nodes, int workers,
                                 const Topology& topology) {
    const auto count = static_cast<std::size_t>(workers);
    std::vector<int> places;
    if (!gpu_nodes.empty()) {
        for (std::size_t i = 0; i < std::max(count, gpu_nodes.size()); ++i) {
            places.push_back(gpu_nodes[i % gpu_nodes.size()]);
        }
        return places;
    }
    const std::set<int> nodes = nodes_with_cpus(topology);
    for (std::size_t i = 0; i < count && !nodes.empty(); ++i) {
        places.push_back(
            *std::next(nodes.begin(), static_cast<std::ptrdiff_t>(i * nodes.size() / count)));
    }
    return places;
}

Result<std::vector<std::vector<int>>> bind_workers(BindingMode mode, const Topology& topology,
                                                   const std::vector<int>& places, int workers) {
    std::vector<std::vector<int>> bound;
    for (std::size_t i = 0; i < places.size() && i < static_cast<std::size_t>(workers); ++i) {
        const int node = places[i];
        const std::vector<const Cpu*> cpus = allowed_of_node(topology, node);
        if (cpus.empty()) {
            return cannot_bind(
                fmt::format("NUMA node {}, near which worker {} is to run, has no "
                            "CPU that this process may use; look at taskset -p $$ "
                            "and the container's cpuset",
                            node, i));
        }
        switch (mode) {
            case BindingMode::Node:
                bound.push_back(indices(cpus));
                break;
            case BindingMode::Socket:
                bound.push_back(cpus_of_package(topology, node));
                break;
            case BindingMode::Exclusive: {
                Result<std::vector<int>> own = own_cores(cpus, node, turn_of(places, i));
                if (!own) {
                    return own.error();
                }
                bound.push_back(*std::move(own));
                break;
            }
            case BindingMode::CoreComplex:
                bound.push_back(cpus_under_cache(cpus, turn_of(places, i)));
                break;
        }
    }
    return bound;
}

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
    std::vector<int> cpus;
    text = text.substr(0, text.find('\n'));
    while (!text.empty()) {
        const std::string_view part = text.substr(0, text.find(','));
        text.remove_prefix(std::min(part.size() + 1, text.size()));
        const std::size_t dash = part.find('-');
        const std::optional<int> first = cpu_number(part.substr(0, dash));
        const std::optional<int> last =
            dash == std::string_view::npos ? first : cpu_number(part.substr(dash + 1));
        if (!first || !last || *last < *first) {
            return std::nullopt;
        }
        for (int cpu = *first; cpu <= *last; ++cpu) {
            cpus.push_back(cpu);
        }
    }
    return cpus;
}

}  // namespace ddprun::launcher
