#pragma once

#include <string>
#include <vector>

struct sockaddr;

namespace ddprun {

/// An address of the Internet as text, a scope behind "%"; empty: it is none.
[[nodiscard]] std::string numeric_address(const sockaddr* address);

/// Those of a host, in the resolver's order; empty: its name cannot be resolved. Blocks as long as
/// the resolver does.
[[nodiscard]] std::vector<std::string> addresses_of(const std::string& host);

}  // namespace ddprun
