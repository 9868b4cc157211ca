#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace ddprun {

/// "0-3,7": ascending whole numbers, those that follow each other as a range.
template <class Number>
[[nodiscard]] std::string number_ranges(const std::vector<Number>& ascending) {
    std::string text;
    for (std::size_t i = 0; i < ascending.size();) {
        std::size_t last = i;
        while (last + 1 < ascending.size() && ascending[last + 1] == ascending[last] + 1) {
            ++last;
        }
        text += text.empty() ? "" : ",";
        text += last == i ? fmt::format("{}", ascending[i])
                          : fmt::format("{}-{}", ascending[i], ascending[last]);
        i = last + 1;
    }
    return text;
}

}  // namespace ddprun
