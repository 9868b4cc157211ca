#include "agent/output/line_prefix.hpp"

#include <array>
#include <cstddef>

#include <fmt/format.h>

namespace ddprun::agent {

namespace {

constexpr std::string_view kTorchrunDefault = "[${role_name}${local_rank}]:";

struct Macro {
    std::string_view name;
    std::string value;
};

bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// The name after a '$' and how many bytes it takes, braces included; 0 if there is none.
struct Reference {
    std::string_view name;
    std::size_t size = 0;
};

Reference read_reference(std::string_view text) {
    const bool is_braced = !text.empty() && text.front() == '{';
    const std::size_t start = is_braced ? 1 : 0;
    std::size_t end = start;
    while (end < text.size() && is_name_char(text[end])) {
        ++end;
    }
    if (!is_braced) {
        return {text.substr(0, end), end};
    }
    if (end == text.size() || text[end] != '}') {
        return {};
    }
    return {text.substr(start, end - start), end + 1};
}

}  // namespace

std::string node_prefix(std::string_view hostname, Rank rank) {
    return fmt::format("[{} {}] ", hostname, rank.value());
}

std::string torchrun_prefix(std::string_view text, std::string_view role, Rank rank,
                            LocalRank local_rank) {
    const std::array<Macro, 3> macros{{{"role_name", std::string(role)},
                                       {"rank", std::to_string(rank.value())},
                                       {"local_rank", std::to_string(local_rank.value())}}};
    if (text.empty()) {
        text = kTorchrunDefault;
    }
    std::string result;
    while (!text.empty()) {
        const std::size_t plain = text.find('$');
        result.append(text.substr(0, plain));
        if (plain == std::string_view::npos) {
            break;
        }
        text.remove_prefix(plain + 1);
        if (!text.empty() && text.front() == '$') {
            result.push_back('$');
            text.remove_prefix(1);
            continue;
        }
        const Reference reference = read_reference(text);
        bool is_known = false;
        for (const Macro& macro : macros) {
            if (reference.size > 0 && macro.name == reference.name) {
                result.append(macro.value);
                text.remove_prefix(reference.size);
                is_known = true;
                break;
            }
        }
        if (!is_known) {
            result.push_back('$');
        }
    }
    return result;
}

}  // namespace ddprun::agent
