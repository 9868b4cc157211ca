#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "launcher/place/place.hpp"

namespace ddprun::launcher {

/// The share that a job has of a host.
struct HostShare {
    std::string host;
    int slots = 0;
};

/// One for each host, in the order in which `words` name them first. A word is a slot. At most
/// Limits::nodes_max hosts. All of these fail with what is wrong, to be put behind the name of the
/// variable or file.
[[nodiscard]] Result<std::vector<HostShare>> shares_of_slots(std::string_view words);

/// The same of pairs `host slots host slots`, with blanks between them.
[[nodiscard]] Result<std::vector<HostShare>> shares_of_pairs(std::string_view words);

/// The same of lines that begin with a host and its slots.
[[nodiscard]] Result<std::vector<HostShare>> shares_of_lines(std::string_view lines);

/// Which of them this machine is, by its own name, with or without the domain; none: none of them.
[[nodiscard]] std::optional<std::size_t> own_share(const std::vector<HostShare>& shares,
                                                   const std::string& own_name);

/// Nodes and endpoint of `place`: all of `shares`, and the first one at the port of `job`.
void take_shares(const std::vector<HostShare>& shares, std::uint64_t job, Place& place);

/// Its start line has all of that as flags: other nodes do not find it by themselves.
void tell_by_flags(Place& place);

}  // namespace ddprun::launcher
