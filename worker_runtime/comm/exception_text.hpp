#pragma once

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>

namespace ddprun::worker {

/// The text of a LibTorch exception, in one line: without the backtrace that c10::Error puts behind
/// it, the place in the source that Gloo puts before it, and Gloo's guess at the cause.
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

/// All that LibTorch says of a failure of NCCL's, in one line: the reason stands in the last ones.
[[nodiscard]] inline std::string all_lines(const std::exception& failure) {
    std::string_view rest(failure.what());
    rest = rest.substr(0, rest.find("\nException raised from "));
    std::string text;
    while (!rest.empty()) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        if (!line.empty()) {
            text += text.empty() || text.ends_with(':') ? "" : ",";
            text += text.empty() ? "" : " ";
            text += line;
        }
    }
    return text;
}

}  // namespace ddprun::worker
