#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launcher/surroundings/topology.hpp"

/// Which CPUs a worker is bound to. Pure: a topology and the places of GPUs in, lists of CPUs out.
namespace ddprun::launcher {

/// torchrun's --numa-binding.
enum class BindingMode { Node, Socket, Exclusive, CoreComplex };

/// One of torchrun's four names.
[[nodiscard]] std::optional<BindingMode> binding_mode(std::string_view name);

/// The NUMA node near which each worker is to run: that of the GPU of its local rank, and where
/// there are more workers than GPUs, of the GPUs in turn. GPUs beyond the workers are listed too,
/// for `exclusive` and `core-complex` leave them their share. Without GPUs the workers are spread
/// over the nodes that have CPUs we may use, neighbours together.
[[nodiscard]] std::vector<int> nodes_of_places(const std::vector<int>& gpu_nodes, int workers,
                                               const Topology& topology);

/// The CPUs, sorted, of the first `workers` of these places, by the rules of torchrun's
/// --numa-binding: the allowed CPUs of the node; of all nodes in its package; a share of the
/// node's cores that no other place has; those under one of the node's largest caches, in turn.
/// Fails with a line for the user when a node has no allowed CPU, or not a core for each place.
[[nodiscard]] Result<std::vector<std::vector<int>>> bind_workers(BindingMode mode,
                                                                 const Topology& topology,
                                                                 const std::vector<int>& places,
                                                                 int workers);

/// The CPUs of a list as the kernel writes it, "0-3,8"; none when it is not one.
[[nodiscard]] std::optional<std::vector<int>> parse_cpu_list(std::string_view text);

}  // namespace ddprun::launcher
