#pragma once

#include <string>

#include "base/result.hpp"
#include "launcher/surroundings/surroundings.hpp"

namespace ddprun::launcher {

struct Python {
    std::string path;    ///< that this user may execute
    std::string origin;  ///< for the user: why it is this one
    std::string note;    ///< for the user: others that could be meant; empty: there are none
};

/// The Python that runs scripts and modules: PYTHON_EXEC, else the one beside this program's file
/// if torch is installed for it, else that of $VIRTUAL_ENV, of $CONDA_PREFIX, of the environment
/// that this program was started from unless pipx or uv made it for ddprun alone, else python3 of
/// PATH. Fails with NotFound or PermissionDenied and a line for the user; `needed_by` is in it.
[[nodiscard]] Result<Python> find_python(const std::string& needed_by,
                                         const Surroundings& surroundings);

}  // namespace ddprun::launcher
