#include "base/template_text.hpp"

#include <algorithm>
#include <cstddef>

namespace ddprun {

namespace {

bool is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// The name after a '$' and how many bytes it takes, braces included; 0 if there is none.
struct Reference {
    std::string_view name;
    std::size_t size = 0;
};

Reference read_reference(std::string_view text) {
    const bool is_braced = text.starts_with('{');
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

std::string substitute(std::string_view text, std::span<const TemplateName> names) {
    std::string result;
    result.reserve(text.size());
    while (!text.empty()) {
        const std::size_t dollar = text.find('$');
        result += text.substr(0, dollar);
        if (dollar == std::string_view::npos) {
            break;
        }
        text.remove_prefix(dollar + 1);
        if (text.starts_with('$')) {
            result += '$';
            text.remove_prefix(1);
            continue;
        }
        const Reference reference = read_reference(text);
        const auto known = std::find_if(names.begin(), names.end(), [&](const TemplateName& one) {
            return one.name == reference.name;
        });
        if (known == names.end()) {
            result += '$';
        } else {
            result += known->value;
            text.remove_prefix(reference.size);
        }
    }
    return result;
}

}  // namespace ddprun
