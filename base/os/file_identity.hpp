#pragma once

#include <string>

namespace ddprun {

/// Which file is at `path`, in words without a blank: another one there, or one that was written
/// since, has others. Empty: none.
[[nodiscard]] std::string file_identity(const std::string& path);

/// Whether both are one file, pipe, socket or terminal, as behind `2>&1`. False if one is not open,
/// or nothing is at `path`.
[[nodiscard]] bool is_same_file(int one, int other);
[[nodiscard]] bool is_same_file(int one, const std::string& path);

}  // namespace ddprun
