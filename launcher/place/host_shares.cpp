#include "launcher/place/host_shares.hpp"

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/limits.hpp"
#include "base/printable.hpp"
#include "base/whole_number.hpp"
#include "launcher/place/variables.hpp"

namespace ddprun::launcher {

namespace {

constexpr std::size_t kShownMax = 80;

Error wrong_share(std::string why) {
    return Error{ErrorCode::InvalidArgument, std::move(why)};
}

/// The first word of `text`, which is taken away; empty: there is none.
std::string_view take_word(std::string_view& text) {
    constexpr std::string_view kBlanks = " \t\r\n";
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
    text.remove_prefix(word.size());
    return word;
}

std::string_view take_line(std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    return line;
}

bool is_host(std::string_view word) {
    return !word.empty() && word.size() <= Limits{}.name_bytes_max && word.front() != '-' &&
           std::all_of(word.begin(), word.end(), [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || c == '.' || c == ':';
           });
}

class Shares {
public:
    std::optional<Error> add(std::string_view host, std::string_view slots) {
        const std::optional<int> number = whole_number<int>(slots);
        if (!number || *number < 1 || *number > Limits{}.cpus_max) {
            return wrong_share(fmt::format("'{}' behind {} is no number of slots",
                                           printable(slots, kShownMax),
                                           printable(host, kShownMax)));
        }
        if (!is_host(host)) {
            return wrong_share(fmt::format("'{}' is no host", printable(host, kShownMax)));
        }
        const auto [found, is_new] = places_.try_emplace(std::string(host), shares_.size());
        if (is_new && shares_.size() == Limits{}.nodes_max) {
            return Error{ErrorCode::LimitExceeded,
                         fmt::format("at most {} nodes are possible", Limits{}.nodes_max)};
        }
        if (is_new) {
            shares_.push_back({std::string(host), 0});
        }
        int& of_host = shares_[found->second].slots;
        of_host = std::min(of_host + *number, Limits{}.cpus_max);
        return std::nullopt;
    }

    Result<std::vector<HostShare>> all() && {
        if (shares_.empty()) {
            return wrong_share("no node is named");
        }
        return std::move(shares_);
    }

private:
    std::vector<HostShare> shares_;
    std::unordered_map<std::string, std::size_t> places_;
};

/// Reads the share of each host in `text`, behind which `take_slots` finds its slots.
template <typename TakeSlots>
Result<std::vector<HostShare>> shares_in(std::string_view text, TakeSlots take_slots) {
    Shares shares;
    for (std::string_view host = take_word(text); !host.empty(); host = take_word(text)) {
        if (std::optional<Error> error = shares.add(host, take_slots(text))) {
            return *std::move(error);
        }
    }
    return std::move(shares).all();
}

/// Without the domain. An address has none.
std::string_view short_name(std::string_view name) {
    const std::string_view first = name.substr(0, name.find('.'));
    return whole_number<std::uint64_t>(first) ? name : first;
}

}  // namespace

Result<std::vector<HostShare>> shares_of_slots(std::string_view words) {
    return shares_in(words, [](std::string_view& /*text*/) { return "1"; });
}

Result<std::vector<HostShare>> shares_of_pairs(std::string_view words) {
    return shares_in(words, take_word);
}

Result<std::vector<HostShare>> shares_of_lines(std::string_view lines) {
    return shares_in(lines, [](std::string_view& text) {
        std::string_view rest_of_line = take_line(text);
        return take_word(rest_of_line);
    });
}

std::optional<std::size_t> own_share(const std::vector<HostShare>& shares,
                                     const std::string& own_name) {
    const auto find = [&](const auto& is_own) -> std::optional<std::size_t> {
        const auto found = std::find_if(shares.begin(), shares.end(), is_own);
        if (found == shares.end()) {
            return std::nullopt;
        }
        return static_cast<std::size_t>(found - shares.begin());
    };
    const std::optional<std::size_t> whole =
        find([&](const HostShare& share) { return share.host == own_name; });
    return whole ? whole : find([&](const HostShare& share) {
        return short_name(share.host) == short_name(own_name);
    });
}

void take_shares(const std::vector<HostShare>& shares, std::uint64_t job, Place& place) {
    place.nodes = static_cast<int>(shares.size());
    place.endpoint_host = shares.front().host;
    place.endpoint_port = port_of_job(job);
}

void tell_by_flags(Place& place) {
    place.start_flags = fmt::format(" --nnodes {} --rdzv-id {} --rdzv-endpoint {}:{}", place.nodes,
                                    place.job_id, place.endpoint_host, place.endpoint_port);
}

}  // namespace ddprun::launcher
