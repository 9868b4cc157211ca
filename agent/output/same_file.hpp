#pragma once

namespace ddprun::agent {

/// Whether both descriptors are the same file, pipe, socket or terminal, as behind `2>&1`. False
/// where one is not open.
[[nodiscard]] bool is_same_file(int one, int other);

}  // namespace ddprun::agent
