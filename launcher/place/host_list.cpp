#include "launcher/place/host_list.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "base/split.hpp"
#include "base/whole_number.hpp"

namespace ddprun::launcher {

namespace {

constexpr std::size_t kHostsMax = Limits{}.nodes_max;
constexpr std::size_t kNameBytesMax = Limits{}.name_bytes_max;
/// More digits are no node's number, and no 64 bits hold them.
constexpr std::size_t kDigitsMax = 18;

Error wrong(std::string why) {
    return Error{ErrorCode::InvalidArgument, std::move(why)};
}

Error too_many() {
    return Error{ErrorCode::LimitExceeded, fmt::format("at most {} nodes are possible", kHostsMax)};
}

bool is_in_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

std::string_view without_blanks(std::string_view text) {
    const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
    return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

std::optional<std::uint64_t> number_of(std::string_view digits) {
    return digits.size() > kDigitsMax ? std::nullopt : whole_number<std::uint64_t>(digits);
}

/// `01-03`: 01, 02, 03, added to `numbers`.
std::optional<Error> add_range(std::string_view range, std::vector<std::string>& numbers) {
    const std::size_t dash = range.find('-');
    const std::string_view first_digits = range.substr(0, dash);
    const std::string_view last_digits =
        dash == std::string_view::npos ? first_digits : range.substr(dash + 1);
    const std::optional<std::uint64_t> first = number_of(first_digits);
    const std::optional<std::uint64_t> last = number_of(last_digits);
    if (!first || !last || *last < *first) {
        return wrong(fmt::format("[{}] is no number and no range of numbers", range));
    }
    if (*last - *first >= kHostsMax - std::min(numbers.size(), kHostsMax)) {
        return too_many();
    }
    for (std::uint64_t number = *first; number <= *last; ++number) {
        numbers.push_back(fmt::format("{:0{}}", number, first_digits.size()));
    }
    return std::nullopt;
}

Result<std::vector<std::string>> numbers_in(std::string_view bracket) {
    std::vector<std::string> numbers;
    for (const std::string_view range : split(bracket, ',')) {
        if (std::optional<Error> error = add_range(range, numbers)) {
            return *std::move(error);
        }
    }
    return numbers;
}

/// Each of `names` with each of `ends` behind it, the ends of one name beside each other.
std::optional<Error> append(const std::vector<std::string>& ends, std::vector<std::string>& names) {
    if (names.size() * ends.size() > kHostsMax) {
        return too_many();
    }
    std::vector<std::string> longer;
    longer.reserve(names.size() * ends.size());
    for (const std::string& name : names) {
        for (const std::string& end : ends) {
            longer.push_back(name + end);
            if (longer.back().size() > kNameBytesMax) {
                return wrong(fmt::format("a name has more than {} bytes", kNameBytesMax));
            }
        }
    }
    names = std::move(longer);
    return std::nullopt;
}

/// One item of the list, from its beginning to the comma behind it, which is taken away too.
Result<std::vector<std::string>> take_item(std::string_view& list) {
    std::vector<std::string> names{""};
    while (!list.empty() && list.front() != ',') {
        std::vector<std::string> ends;
        if (list.front() == '[') {
            const std::size_t close = list.find(']');
            if (close == std::string_view::npos) {
                return wrong("a bracket is not closed");
            }
            Result<std::vector<std::string>> numbers = numbers_in(list.substr(1, close - 1));
            if (!numbers) {
                return numbers.error();
            }
            ends = *std::move(numbers);
            list.remove_prefix(close + 1);
        } else {
            const std::size_t end = std::min(list.find_first_of("[,"), list.size());
            const std::string_view text = without_blanks(list.substr(0, end));
            if (!std::all_of(text.begin(), text.end(), is_in_name)) {
                return wrong("a name has letters, digits, '-', '_' and '.' only");
            }
            ends.emplace_back(text);
            list.remove_prefix(end);
        }
        if (std::optional<Error> error = append(ends, names)) {
            return *std::move(error);
        }
    }
    list.remove_prefix(list.empty() ? 0 : 1);
    return names;
}

}  // namespace

Result<std::vector<std::string>> expand_host_list(std::string_view list) {
    std::vector<std::string> hosts;
    while (!list.empty()) {
        Result<std::vector<std::string>> names = take_item(list);
        if (!names) {
            return names.error();
        }
        if (names->front().empty()) {
            continue;  // Two commas beside each other, which Slurm allows.
        }
        if (hosts.size() + names->size() > kHostsMax) {
            return too_many();
        }
        hosts.insert(hosts.end(), std::make_move_iterator(names->begin()),
                     std::make_move_iterator(names->end()));
    }
    if (hosts.empty()) {
        return wrong("no node is named");
    }
    return hosts;
}

Result<std::vector<int>> expand_counts(std::string_view list) {
    std::vector<int> counts;
    for (const std::string_view item : split(list, ',')) {
        const std::size_t times_begin = item.find("(x");
        const std::optional<int> count = whole_number<int>(item.substr(0, times_begin));
        std::optional<std::size_t> times = 1;
        if (times_begin != std::string_view::npos) {
            times = item.ends_with(')') ? whole_number<std::size_t>(item.substr(
                                              times_begin + 2, item.size() - times_begin - 3))
                                        : std::nullopt;
        }
        if (!count || *count < 0 || !times) {
            return wrong(fmt::format("'{}' is no number of the form 4 or 4(x2)", item));
        }
        if (*times > kHostsMax - counts.size()) {
            return too_many();
        }
        counts.insert(counts.end(), *times, *count);
    }
    return counts;
}

}  // namespace ddprun::launcher
