#pragma once

#include <string>
#include <vector>

#include "base/result.hpp"
#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

enum class ProgramMode {
    Guess,    ///< Python for a name that ends in .py, else an executable
    Module,   ///< -m: a module that Python finds
    RunPath,  ///< --run-path: a file, folder or archive that Python runs as __main__
    Direct,   ///< --no-python: always an executable
};

struct Program {
    /// argv of a worker; its first element is a path that this user may execute.
    std::vector<std::string> command;
    std::string file;           ///< what is run, on whatever; empty: not known before it runs
    std::string python;         ///< the interpreter that runs it; empty: none does
    std::string python_origin;  ///< why it is this one, for the user; empty: the user typed it
    std::string note;           ///< what was chosen in the user's place; empty: nothing
    /// `python` is the first element, reads PYTHONPATH and imports `site`: not with -I, -E or -S.
    bool takes_python_path = false;
};

/// The program for what the user typed, which is not empty. Fails with NotFound or PermissionDenied
/// and a line for the user.
[[nodiscard]] Result<Program> resolve_program(ProgramMode mode,
                                              const std::vector<std::string>& typed,
                                              const Surroundings& surroundings);

}  // namespace ddprun::launcher
