#pragma once

#include <unistd.h>

#include <array>
#include <string_view>

#include "tests/support/catch.hpp"

namespace ddprun::test {

/// Whether processes have the same numbers here as for drivers. Says so, for a test that is left
/// out, if not.
inline bool is_in_first_namespace() {
    std::array<char, 64> buffer;
    const ssize_t length = ::readlink("/proc/self/ns/pid", buffer.data(), buffer.size());
    const bool is_first =
        length > 0 &&
        std::string_view(buffer.data(), static_cast<std::size_t>(length)) == "pid:[4026531836]";
    if (!is_first) {
        WARN("LEFT OUT: in this container drivers know processes by other numbers");
    }
    return is_first;
}

}  // namespace ddprun::test
