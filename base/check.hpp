#pragma once

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace ddprun {

/// Remembers `event` in this thread's ring of the last 64, printed when a check fails.
void note_event(std::string_view event);

/// Prints the failed expression, its values, the place and this thread's last events; aborts.
[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const std::string& values);

namespace detail {

inline std::string check_values() {
    return {};
}

template <typename First, typename... Rest>
std::string check_values(const First& first, const Rest&... rest) {
    std::string text = fmt::format("{}", first);
    ((text += fmt::format(", {}", rest)), ...);
    return text;
}

}  // namespace detail

}  // namespace ddprun

/// An invariant whose failure is a bug in ddprun. On in release builds too: containment ends the
/// workers when the agent dies, so stopping is safer than going on wrong.
#define DDP_CHECK(expression, ...)                                               \
    do {                                                                         \
        if (!(expression)) {                                                     \
            ::ddprun::check_failed(#expression, __FILE__, __LINE__,              \
                                   ::ddprun::detail::check_values(__VA_ARGS__)); \
        }                                                                        \
    } while (false)
