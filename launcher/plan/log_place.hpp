#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace ddprun::launcher {

/// The log folder if --log-dir names none. `tmpdir`: the variable TMPDIR, perhaps empty.
[[nodiscard]] inline std::string default_log_dir(std::string_view tmpdir, unsigned int user_id) {
    return fmt::format("{}/ddprun-{}", tmpdir.empty() ? "/tmp" : tmpdir, user_id);
}

}  // namespace ddprun::launcher
