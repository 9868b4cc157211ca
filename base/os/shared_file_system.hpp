#pragma once

#include <string>

namespace ddprun {

/// Whether other machines may see and write what lies there, by the kind of its file system: of a
/// network, or in user space (FUSE), which may be one. False also if the kind cannot be read.
[[nodiscard]] bool is_on_shared_file_system(const std::string& path);

}  // namespace ddprun
