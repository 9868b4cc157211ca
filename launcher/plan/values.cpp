#include "launcher/plan/values.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <csignal>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/limits.hpp"
#include "base/signal_name.hpp"
#include "base/trimmed.hpp"
#include "base/utf8.hpp"
#include "base/whole_number.hpp"

namespace ddprun::launcher {

namespace {

constexpr double kSecondsMax = 365.0 * 24 * 3600;

/// A whole number that is all of `text` but for blanks around it.
std::optional<int> as_int(std::string_view text) {
    return whole_number<int>(trimmed(text));
}

std::optional<std::uint16_t> as_port(std::string_view text) {
    const std::optional<int> number = as_int(text);
    if (!number || text.size() > 5 || text.find_first_not_of("0123456789") != text.npos ||
        *number > 65535) {
        return std::nullopt;
    }
    return static_cast<std::uint16_t>(*number);
}

/// Those that mean something to a whole job; others belong to a process (SIGSEGV), to the kernel
/// (SIGKILL) or to ddprun's own work (SIGCHLD, SIGTSTP).
constexpr std::array kSignals = {SIGTERM, SIGINT,  SIGHUP,  SIGQUIT, SIGUSR1,
                                 SIGUSR2, SIGALRM, SIGXCPU, SIGPWR};

}  // namespace

Error bad_value(const Given& given, std::string_view why) {
    return Error{ErrorCode::InvalidArgument, fmt::format("{}: {}", given.shown(), why)};
}

Result<int> parse_whole_number(const Given& given, Range range) {
    const std::optional<int> number = as_int(given.value);
    if (!number || *number < range.least || *number > range.most) {
        return bad_value(
            given, fmt::format("must be a whole number from {} to {}", range.least, range.most));
    }
    return *number;
}

Result<std::uint64_t> parse_bytes(const Given& given, std::uint64_t least) {
    constexpr std::string_view kUnits = "KMGT";
    constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 50;
    const std::string_view text = trimmed(given.value);
    const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
    const std::optional<std::uint64_t> number = whole_number<std::uint64_t>(text.substr(0, digits));
    std::string_view unit = text.substr(digits);
    const std::size_t power = unit.empty() ? std::string_view::npos : kUnits.find(unit.front());
    int shift = 0;
    if (power != std::string_view::npos) {
        shift = static_cast<int>(power + 1) * 10;
        unit.remove_prefix(1);
        const bool is_spelt_out = unit == "B" || unit == "iB";
        unit = is_spelt_out ? std::string_view() : unit;
    }
    if (!number || !unit.empty() || *number > (kBytesMax >> shift) || (*number << shift) < least) {
        return bad_value(given, fmt::format("must be a number of bytes, at least {}, such as 64M "
                                            "or 2G",
                                            least));
    }
    return *number << shift;
}

Result<Milliseconds> parse_seconds(const Given& given, Milliseconds least) {
    const std::optional<double> seconds = whole_number<double>(trimmed(given.value));
    const double least_seconds = std::chrono::duration<double>{least}.count();
    if (!seconds || !(*seconds >= least_seconds && *seconds <= kSecondsMax)) {
        return bad_value(given, fmt::format("must be seconds, at least {:g}; write a number such "
                                            "as 30 or 0.5, without a unit",
                                            least_seconds));
    }
    return Milliseconds{std::llround(*seconds * 1000)};
}

namespace {

constexpr std::string_view kNodesForm =
    "write N, MIN:MAX or sizes, for example --nnodes 4, --nnodes 2:4 or --nnodes 2,4,8";

Error not_nodes(const Given& given) {
    return bad_value(given, fmt::format("not a number of nodes; {}", kNodesForm));
}

Error no_node(const Given& given) {
    return bad_value(given, fmt::format("at least 1 node is needed; {}", kNodesForm));
}

/// `A,B,C`.
Result<NodeCounts> parse_node_sizes(const Given& given) {
    std::string text = given.value;
    const bool has_range = text.find(':') != std::string::npos;
    std::replace(text.begin(), text.end(), ':', ',');
    std::vector<int> sizes;
    for (const std::string_view part : split(text, ',')) {
        const std::optional<int> size = as_int(part);
        if (!size) {
            return not_nodes(given);
        }
        sizes.push_back(*size);
    }
    std::vector<int> sorted = sizes;
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    if (sorted.front() < 1) {
        return no_node(given);
    }
    const std::size_t count_max = Limits{}.node_sizes_max;
    if (sizes.size() > count_max) {
        return bad_value(given, fmt::format("{} sizes are listed, at most {} are possible; write a "
                                            "range, with --node-unit if its sizes are multiples",
                                            sizes.size(), count_max));
    }
    if (has_range) {
        return bad_value(given,
                         fmt::format("either a range or sizes; write --nnodes {}:{} or --nnodes {}",
                                     sorted.front(), sorted.back(), fmt::join(sorted, ",")));
    }
    for (std::size_t i = 1; i < sizes.size(); ++i) {
        if (sizes[i] <= sizes[i - 1]) {
            return bad_value(
                given, fmt::format("the sizes must grow, and {} follows {}; write --nnodes {}",
                                   sizes[i], sizes[i - 1], fmt::join(sorted, ",")));
        }
    }
    return NodeCounts{.least = sizes.front(), .most = sizes.back(), .sizes = sizes};
}

}  // namespace

Result<NodeCounts> parse_nnodes(const Given& given) {
    if (given.value.find(',') != std::string::npos) {
        return parse_node_sizes(given);
    }
    const std::vector<std::string_view> parts = split(given.value, ':');
    const std::optional<int> least = as_int(parts.front());
    const std::optional<int> most = as_int(parts.back());
    if (parts.size() > 2 || !least || !most) {
        return not_nodes(given);
    }
    if (*least < 1) {
        return no_node(given);
    }
    if (*least > *most) {
        return bad_value(given, fmt::format("the minimum {} is above the maximum {}; write "
                                            "--nnodes {}:{}",
                                            *least, *most, std::max(1, *most), *least));
    }
    return NodeCounts{.least = *least, .most = *most, .sizes = {}};
}

namespace {

bool is_ipv4(const std::string& text) {
    in_addr ignored{};
    return inet_pton(AF_INET, text.c_str(), &ignored) == 1;
}

/// With a zone (fe80::1%eth0) or without.
bool is_ipv6(std::string_view text) {
    in6_addr ignored{};
    return inet_pton(AF_INET6, std::string(text.substr(0, text.find('%'))).c_str(), &ignored) == 1;
}

/// Whether `label` may be a part of a host name, as DNS and hosts files have them.
bool is_possible_label(std::string_view label) {
    constexpr std::size_t kLabelMax = 63;
    return !label.empty() && label.size() <= kLabelMax &&
           std::all_of(label.begin(), label.end(), [](unsigned char byte) {
               return std::isalnum(byte) != 0 || byte == '-' || byte == '_';
           });
}

/// An address, or a name that may exist, now or later. One whose last label is a number is neither.
bool is_possible_host(std::string_view host) {
    constexpr std::size_t kNameMax = 253;
    if (is_ipv4(std::string(host))) {
        return true;
    }
    if (host.ends_with('.')) {
        host.remove_suffix(1);
    }
    const std::vector<std::string_view> labels = split(host, '.');
    const bool is_number = labels.back().find_first_not_of("0123456789") == std::string_view::npos;
    return !is_number && host.size() <= kNameMax &&
           std::all_of(labels.begin(), labels.end(), is_possible_label);
}

}  // namespace

Result<HostAndPort> parse_host_and_port(const Given& given) {
    constexpr std::string_view kForm = "write HOST or HOST:PORT";
    const std::string_view text = trimmed(given.value);
    std::string_view host = text;
    std::optional<std::string_view> port;
    if (text.find('@') != std::string_view::npos) {
        // The text before the '@' may be a password: it is not repeated.
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("{}: an endpoint has no user and no password; {}; ddprun's own "
                                 "secret is --secret-file's",
                                 given.source, kForm)};
    }
    if (text.starts_with('[')) {
        const std::size_t close = text.find(']');
        const std::string_view behind =
            close == std::string_view::npos ? std::string_view{"?"} : text.substr(close + 1);
        if (!behind.empty() && behind.front() != ':') {
            return bad_value(given, "not an IPv6 endpoint; write [ADDRESS] or [ADDRESS]:PORT");
        }
        host = text.substr(1, close - 1);
        port = behind.empty() ? port : behind.substr(1);
    } else if (std::count(text.begin(), text.end(), ':') > 1) {
        const bool is_url = text.find("//") != std::string_view::npos;
        return bad_value(given, is_url ? fmt::format("not an endpoint; {}, without a scheme", kForm)
                                       : fmt::format("an IPv6 address needs brackets; write [{}], "
                                                     "or [ADDRESS]:PORT",
                                                     text));
    } else if (const std::size_t colon = text.find(':'); colon != std::string_view::npos) {
        host = text.substr(0, colon);
        port = text.substr(colon + 1);
    }
    if (host.empty()) {
        return bad_value(given, fmt::format("the host is missing; {}", kForm));
    }
    // A part that inet_pton() does not read, behind a NUL or in a zone, is no part of an address
    // either.
    const bool is_clean = is_plain(host) && host.find_first_of("/,@=[]") == std::string_view::npos;
    if (!is_clean || (text.starts_with('[') ? !is_ipv6(host) : !is_possible_host(host))) {
        return bad_value(given, fmt::format("not a host name or address: {}; {}", host, kForm));
    }
    HostAndPort endpoint{.host = std::string{host}, .port = std::nullopt};
    if (port) {
        endpoint.port = as_port(*port);
        if (!endpoint.port) {
            return bad_value(given, fmt::format("'{}' is no port; write a number from 1 to 65535, "
                                                "or leave it out for 29400",
                                                *port));
        }
    }
    return endpoint;
}

int StreamChoice::of(int local_rank) const {
    const auto found = by_rank.find(local_rank);
    return found == by_rank.end() ? everywhere : found->second;
}

Result<StreamChoice> parse_streams(const Given& given) {
    constexpr std::string_view kForm =
        "write 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or by local rank, for example 0:3,1:1";
    std::string_view text = trimmed(given.value);
    if (text.starts_with('=')) {
        text.remove_prefix(1);  // "-t=3": the letter keeps its "="
    }
    StreamChoice choice;
    for (const std::string_view part : split(text, ',')) {
        const std::vector<std::string_view> pair = split(part, ':');
        const std::optional<int> streams = as_int(pair.back());
        const int rank = pair.size() == 2 ? as_int(pair.front()).value_or(-1) : -1;
        const bool is_for_all = pair.size() == 1 && part == text;
        const bool is_for_one = pair.size() == 2 && rank >= 0;
        if (!streams || *streams < 0 || *streams > 3 || (!is_for_all && !is_for_one)) {
            return bad_value(given, fmt::format("not a choice of streams; {}", kForm));
        }
        if (is_for_all) {
            choice.everywhere = *streams;
        } else {
            choice.by_rank[rank] = *streams;
        }
    }
    return choice;
}

Result<std::vector<int>> parse_ranks(const Given& given) {
    std::vector<int> ranks;
    for (const std::string_view part : split(given.value, ',')) {
        const std::optional<int> rank = as_int(part);
        if (!rank || *rank < 0) {
            return bad_value(given, "not a list of local ranks; write for example 0,1");
        }
        ranks.push_back(*rank);
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
}

Result<agent::RanksFilter> parse_job_ranks(const Given& given) {
    agent::RanksFilter filter;
    for (const std::string_view part : split(given.value, ',')) {
        const std::optional<int> rank = as_int(part);
        if (part == "last") {
            filter.has_last = true;
        } else if (rank && *rank >= 0) {
            filter.ranks.push_back(*rank);
        } else {
            return bad_value(given, "not a list of ranks; write for example 0,3 or 0,last");
        }
    }
    std::sort(filter.ranks.begin(), filter.ranks.end());
    return filter;
}

Result<std::vector<int>> parse_signals(const Given& given) {
    std::vector<int> signals;
    for (const std::string_view part : split(given.value, ',')) {
        std::string name{trimmed(part)};
        std::transform(name.begin(), name.end(), name.begin(),
                       [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
        const auto found = std::find_if(kSignals.begin(), kSignals.end(), [&name](int signal) {
            return name == signal_name(signal) || "SIG" + name == signal_name(signal);
        });
        if (found == kSignals.end()) {
            std::vector<std::string> names;
            std::transform(kSignals.begin(), kSignals.end(), std::back_inserter(names),
                           signal_name);
            return bad_value(given, fmt::format("'{}' cannot be handled; choose from {}",
                                                trimmed(part), fmt::join(names, ",")));
        }
        if (std::find(signals.begin(), signals.end(), *found) == signals.end()) {
            signals.push_back(*found);
        }
    }
    return signals;
}

std::vector<std::string> parse_texts(std::string_view list) {
    std::vector<std::string> texts{""};
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i] != ',') {
            texts.back() += list[i];
        } else if (i + 1 < list.size() && list[i + 1] == ',') {
            texts.back() += ',';
            ++i;
        } else {
            texts.emplace_back();
        }
    }
    std::erase(texts, "");
    return texts;
}

Result<std::map<std::string, Given>> parse_key_values(const Given& given) {
    std::map<std::string, Given> pairs;
    for (const std::string_view part : split(given.value, ',')) {
        const std::size_t equals = part.find('=');
        const std::string key{trimmed(part.substr(0, equals))};
        const std::string value{equals == std::string_view::npos
                                    ? std::string_view{}
                                    : trimmed(part.substr(equals + 1))};
        if (key.empty() || value.empty()) {
            return bad_value(given, fmt::format("'{}' is not KEY=VALUE; write for example "
                                                "join_timeout=600,last_call_timeout=30",
                                                trimmed(part)));
        }
        pairs[key] = Given{fmt::format("{} {}", given.source, key), value};
    }
    return pairs;
}

Result<std::string> parse_name(const Given& given, std::size_t bytes_max) {
    if (given.value.empty()) {
        return bad_value(given, "is empty; give a name, or leave the flag out");
    }
    if (given.value.size() > bytes_max) {
        return bad_value(given, fmt::format("has {} bytes; at most {} are allowed",
                                            given.value.size(), bytes_max));
    }
    if (!is_plain(given.value) || given.value.find('/') != std::string::npos ||
        given.value.front() == '.') {
        return bad_value(given,
                         "becomes part of file names; use letters, digits, '-', '_', '.', "
                         "and no leading '.'");
    }
    return given.value;
}

bool is_plain(std::string_view text) {
    return is_utf8(text) && std::all_of(text.begin(), text.end(), [](char c) {
               return static_cast<unsigned char>(c) > 0x20 && c != 0x7f;
           });
}

Result<std::size_t> parse_choice(const Given& given, const std::vector<std::string_view>& choices) {
    const auto found = std::find(choices.begin(), choices.end(), given.value);
    if (found == choices.end()) {
        return bad_value(given, fmt::format("must be {}", fmt::join(choices, " or ")));
    }
    return static_cast<std::size_t>(found - choices.begin());
}

}  // namespace ddprun::launcher
