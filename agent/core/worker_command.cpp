#include "agent/core/worker_command.hpp"

#include <cstddef>

namespace ddprun::agent {

namespace {

constexpr std::string_view kName = "local_rank";

bool is_identifier_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_identifier_part(char c) {
    return is_identifier_start(c) || (c >= '0' && c <= '9');
}

/// The identifier that `text` begins with; empty if none.
std::string_view leading_identifier(std::string_view text) {
    if (text.empty() || !is_identifier_start(text.front())) {
        return {};
    }
    std::size_t length = 1;
    while (length < text.size() && is_identifier_part(text[length])) {
        ++length;
    }
    return text.substr(0, length);
}

/// How many characters after a `$` are the name to replace; 0 if it is not our name.
std::size_t placeholder_length(std::string_view after_dollar) {
    if (!after_dollar.empty() && after_dollar.front() == '{') {
        const std::string_view name = leading_identifier(after_dollar.substr(1));
        const std::size_t end = name.size() + 1;
        const bool is_closed = end < after_dollar.size() && after_dollar[end] == '}';
        return name == kName && is_closed ? end + 1 : 0;
    }
    return leading_identifier(after_dollar) == kName ? kName.size() : 0;
}

}  // namespace

std::string substitute_local_rank(std::string_view text, LocalRank local_rank) {
    std::string result;
    result.reserve(text.size());
    while (!text.empty()) {
        const std::size_t dollar = text.find('$');
        result += text.substr(0, dollar);
        if (dollar == std::string_view::npos) {
            break;
        }
        text.remove_prefix(dollar + 1);
        if (!text.empty() && text.front() == '$') {
            result += '$';
            text.remove_prefix(1);
            continue;
        }
        const std::size_t length = placeholder_length(text);
        if (length == 0) {
            result += '$';
            continue;
        }
        result += std::to_string(local_rank.value());
        text.remove_prefix(length);
    }
    return result;
}

std::vector<std::string> worker_command(const std::vector<std::string>& command,
                                        LocalRank local_rank) {
    std::vector<std::string> result;
    result.reserve(command.size());
    for (const std::string& argument : command) {
        result.push_back(result.empty() ? argument : substitute_local_rank(argument, local_rank));
    }
    return result;
}

}  // namespace ddprun::agent
