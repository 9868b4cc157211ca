#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace ddprun::worker {

/// What LibTorch threw, in one line: without the backtrace that c10::Error puts behind it, the
/// place in the source that Gloo puts before it, and Gloo's guess at the cause.
[[nodiscard]] inline std::string first_line(const std::exception& failure) {
    std::string_view text(failure.what());
    text = text.substr(0, text.find('\n'));
    if (text.starts_with("[/")) {
        const std::size_t end = text.find("] ");
        text.remove_prefix(end == std::string_view::npos ? 0 : end + 2);
    }
    text = text.substr(0, text.find(". This is typically caused by"));
    return std::string(text);
}

}  // namespace ddprun::worker
