#include "rendezvous/wire/last_words.hpp"

#include <algorithm>
#include <cstddef>

#include <nlohmann/json.hpp>

#include "base/escape_sequence.hpp"
#include "rendezvous/wire/json_text.hpp"

namespace ddprun::rdzv {

namespace {

constexpr std::string_view kTraceback = "Traceback (most recent call last):";

std::string without_escapes(std::string_view line) {
    std::string text;
    while (!line.empty()) {
        const std::size_t size = line.front() == '\x1b' ? escape_length(line) : 0;
        if (size > 0) {
            line.remove_prefix(size);
            continue;
        }
        text += line.front() == '\t' ? std::string(4, ' ') : std::string(1, line.front());
        line.remove_prefix(1);
    }
    return text;
}

/// The text that a line with carriage returns leaves on a terminal.
std::string last_state(std::string_view line) {
    while (!line.empty()) {
        const std::size_t at = line.rfind('\r');
        const std::size_t begin = at == std::string_view::npos ? 0 : at + 1;
        std::string shown = without_escapes(line.substr(begin));
        if (!shown.empty() || begin == 0) {
            return shown;
        }
        line = line.substr(0, at);
    }
    return {};
}

/// Without torch's `[rank0]: ` before it.
std::string_view without_rank(std::string_view line) {
    constexpr std::string_view kRank = "[rank";
    if (line.starts_with(kRank)) {
        const std::size_t end = line.find_first_not_of("0123456789", kRank.size());
        if (end != std::string_view::npos && line.substr(end).starts_with("]:")) {
            line.remove_prefix(end + 2);
            line.remove_prefix(line.starts_with(' ') ? 1 : 0);
        }
    }
    return line;
}

/// The exception: the first line behind a traceback that is not indented.
std::string exception_in(const std::vector<std::string>& lines) {
    for (std::size_t i = begin_of_traceback(lines) + 1; i < lines.size(); ++i) {
        const std::string_view line = without_rank(lines[i]);
        if (!line.empty() && line.front() != ' ') {
            return std::string(line);
        }
    }
    return {};
}

}  // namespace

ErrorFile parse_error_file(std::string_view content) {
    const nlohmann::json file = parse_shallow_json(content);
    if (!file.is_object() || !file.contains("message")) {
        return {};
    }
    const nlohmann::json& message = file["message"];
    if (!message.is_object()) {
        return {.message = text_in(file, "message")};
    }
    ErrorFile error{.message = text_in(message, "message")};
    if (message.contains("extraInfo")) {
        error.traceback = text_in(message["extraInfo"], "py_callstack");
    }
    return error;
}

std::vector<std::string> shown_lines(std::string_view bytes) {
    std::vector<std::string> lines;
    while (!bytes.empty()) {
        const std::size_t end = std::min(bytes.find('\n'), bytes.size());
        lines.push_back(last_state(bytes.substr(0, end)));
        bytes.remove_prefix(std::min(end + 1, bytes.size()));
    }
    while (!lines.empty() && lines.back().empty()) {
        lines.pop_back();
    }
    return lines;
}

std::size_t begin_of_traceback(const std::vector<std::string>& lines) {
    for (std::size_t i = lines.size(); i > 0; --i) {
        if (without_rank(lines[i - 1]) == kTraceback) {
            return i - 1;
        }
    }
    return lines.size();
}

CauseLine cause_line(const Evidence& evidence) {
    const std::vector<std::string> told =
        shown_lines(parse_error_file(evidence.error_file).message);
    const auto said = std::find_if(told.begin(), told.end(),
                                   [](const std::string& line) { return !line.empty(); });
    if (said != told.end()) {
        return {*said};
    }
    const std::vector<std::string> err = shown_lines(evidence.stderr_tail);
    const std::vector<std::string> out = shown_lines(evidence.stdout_tail);
    for (const std::vector<std::string>* lines : {&err, &out}) {
        if (std::string exception = exception_in(*lines); !exception.empty()) {
            return {std::move(exception)};
        }
    }
    if (!err.empty()) {
        return {std::string(without_rank(err.back()))};
    }
    return out.empty() ? CauseLine{} : CauseLine{std::string(without_rank(out.back())), true};
}

}  // namespace ddprun::rdzv
