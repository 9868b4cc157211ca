#include "launcher/plan/nearest_name.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace ddprun::launcher {

namespace {

std::size_t edit_distance(std::string_view left, std::string_view right) {
    std::vector<std::size_t> row(right.size() + 1);
    for (std::size_t j = 0; j <= right.size(); ++j) {
        row[j] = j;
    }
    for (std::size_t i = 1; i <= left.size(); ++i) {
        std::size_t diagonal = std::exchange(row[0], i);
        for (std::size_t j = 1; j <= right.size(); ++j) {
            const std::size_t changed = diagonal + (left[i - 1] == right[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, changed});
        }
    }
    return row[right.size()];
}

}  // namespace

std::string_view nearest_name(std::string_view typed, const std::vector<std::string_view>& names) {
    std::string_view nearest;
    std::size_t least = 3;
    for (const std::string_view name : names) {
        const std::size_t distance = edit_distance(typed, name);
        if (distance < least && distance * 3 <= name.size()) {
            least = distance;
            nearest = name;
        }
    }
    return nearest;
}

}  // namespace ddprun::launcher
