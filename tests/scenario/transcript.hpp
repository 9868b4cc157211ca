#pragma once

#include <string>

#include "base/result.hpp"

namespace ddprun::sim {

/// Replays a transcript: a text of commands to one Coordinator, each followed by the complete
/// trace of what it did, indented by four spaces. Returns the same text with the trace as it is
/// now, so that a transcript that holds is returned unchanged. Fails on an unknown command, and
/// names its line. tests/scenario/README.md lists the commands.
[[nodiscard]] Result<std::string> replay(const std::string& transcript);

/// The first lines in which the two differ, with some context, for people; empty if none.
[[nodiscard]] std::string first_difference(const std::string& expected, const std::string& actual);

}  // namespace ddprun::sim
