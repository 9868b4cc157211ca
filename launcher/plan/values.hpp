#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/contract/worker_options.hpp"
#include "base/instant.hpp"
#include "base/result.hpp"
#include "base/split.hpp"
#include "launcher/plan/flags.hpp"

/// The grammars of single values. Each function takes a value with its source, fails with a line
/// for the user that names both, and reads nothing but its arguments.
namespace ddprun::launcher {

/// An Error of a wrong value: "<source> <value>: <why>".
[[nodiscard]] Error bad_value(const Given& given, std::string_view why);

struct Range {
    int least = 0;
    int most = 0;
};

[[nodiscard]] Result<int> parse_whole_number(const Given& given, Range range);

/// A number of bytes, with K, M, G or T for powers of 1024 (also as KB or KiB), at least `least`.
[[nodiscard]] Result<std::uint64_t> parse_bytes(const Given& given, std::uint64_t least);

/// Seconds, fractions allowed, at least `least`.
[[nodiscard]] Result<Milliseconds> parse_seconds(const Given& given,
                                                 Milliseconds least = Milliseconds{0});

struct NodeCounts {
    int least = 1;
    int most = 1;
    std::vector<int> sizes;  ///< growing, from the least to the most; empty: all of these
};

/// `N`, `MIN:MAX` or `A,B,C`.
[[nodiscard]] Result<NodeCounts> parse_nnodes(const Given& given);

struct HostAndPort {
    std::string host;  ///< an IPv6 address without its brackets
    std::optional<std::uint16_t> port;
};

/// `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
[[nodiscard]] Result<HostAndPort> parse_host_and_port(const Given& given);

/// torchrun's Std: bit 1 is stdout, bit 2 is stderr.
struct StreamChoice {
    int everywhere = 0;          ///< of ranks that are not listed
    std::map<int, int> by_rank;  ///< by local rank

    [[nodiscard]] int of(int local_rank) const;
};

/// `M` or `RANK:M,RANK:M` with M from 0 to 3.
[[nodiscard]] Result<StreamChoice> parse_streams(const Given& given);

/// `0,3,last`: ranks of the whole job.
[[nodiscard]] Result<agent::RanksFilter> parse_job_ranks(const Given& given);

/// `0,3,11`.
[[nodiscard]] Result<std::vector<int>> parse_ranks(const Given& given);

/// `SIGTERM,SIGINT`: numbers in the order given, each once. "SIG" may be left out.
[[nodiscard]] Result<std::vector<int>> parse_signals(const Given& given);

/// `apple,pear`: texts of which an empty one is none; two commas are one of the text itself.
[[nodiscard]] std::vector<std::string> parse_texts(std::string_view list);

/// `key=value,key=value`, blanks around each trimmed; the last of a repeated key counts. The
/// entries' source is "<source> <key>".
[[nodiscard]] Result<std::map<std::string, Given>> parse_key_values(const Given& given);

/// A job id, node id or role: it becomes part of file names and messages.
[[nodiscard]] Result<std::string> parse_name(const Given& given, std::size_t bytes_max);

/// UTF-8 without blanks and control characters: what can travel as a name. Also for an empty text.
[[nodiscard]] bool is_plain(std::string_view text);

/// One of `choices`, as its index.
[[nodiscard]] Result<std::size_t> parse_choice(const Given& given,
                                               const std::vector<std::string_view>& choices);

}  // namespace ddprun::launcher
