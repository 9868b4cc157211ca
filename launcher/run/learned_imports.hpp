#pragma once

#include <string>
#include <vector>

#include "base/limits.hpp"

namespace ddprun::launcher {

/// The files that identify a program, and the places of its user's caches.
struct LearnedImportsPlaces {
    std::string program;  ///< the file whose content is the program; empty: not known
    std::string python;   ///< the interpreter that runs it
    std::string cache;    ///< as $XDG_CACHE_HOME
    std::string home;
};

/// The modules that a program imports, as an earlier run has found.
struct LearnedImports {
    std::string file;  ///< where it is kept; empty: nowhere
    std::vector<std::string> modules;
    std::string problem;  ///< a line: why the file is not used. Empty: all is well
};

/// Looks for what a run of this program, with the same content and interpreter, has kept for later
/// ones. Names of modules only: what is no such name makes the file unfit, as do other owners or
/// writers. A rehearsal writes it (worker_runtime/python/INTERNALS.md). No file is no problem.
[[nodiscard]] LearnedImports read_learned_imports(const LearnedImportsPlaces& places,
                                                  const Limits& limits);

}  // namespace ddprun::launcher
