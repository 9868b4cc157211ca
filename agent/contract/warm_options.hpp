#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::agent {

/// The user's choices with --warm.
struct WarmOptions {
    [[nodiscard]] bool is_on() const { return learns || !modules.empty(); }

    /// Not Python's: one that waits for its place by itself, before main(), once can_wait() is
    /// known. For people. Empty: it is Python's.
    std::string program;
    std::vector<std::string> modules;  ///< to be imported beforehand
    bool learns = false;               ///< those that a worker imports, in their place
    std::vector<std::string> known;    ///< learned in an earlier run of the program, as told
    std::string keep_file;    ///< for later runs, what is learned in this one; empty: nowhere
    bool needs_room = false;  ///< standbys are prepared only where memory has room
    std::optional<std::uint64_t> memory_max;  ///< bytes, of all standbys of this node
    /// A program of the workers' interpreter that does nothing: it shows whether that has the hook.
    std::vector<std::string> trial;
};

}  // namespace ddprun::agent
