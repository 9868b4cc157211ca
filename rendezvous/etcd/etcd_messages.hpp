#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

/// The requests to etcd's v3 JSON gateway and what it answers. Pure: text in, text out. Keys and
/// values travel as base64, 64-bit numbers as text, and what is zero, false or empty is left out.
namespace ddprun::rdzv {

struct EtcdRequest {
    std::string path;
    std::string body;
};

/// One key as etcd stores it.
struct EtcdEntry {
    std::string key;
    std::string value;
    std::uint64_t create_revision = 0;
    std::uint64_t mod_revision = 0;
    std::int64_t lease = 0;
};

struct EtcdLease {
    std::int64_t id = 0;
    std::int64_t ttl_seconds = 0;  ///< 0: there is no such lease (any more)
};

struct EtcdRange {
    std::uint64_t revision = 0;  ///< of the store when it was read
    std::vector<EtcdEntry> entries;
    bool has_more = false;
};

struct EtcdCampaign {
    bool has_won = false;
    std::uint64_t revision = 0;          ///< won: the term
    std::optional<EtcdEntry> incumbent;  ///< lost: the entry of its holder
};

struct EtcdGuarded {
    bool is_done = false;
    std::uint64_t revision = 0;       ///< done: of the change
    std::optional<EtcdEntry> leader;  ///< not done: as they are
    std::optional<EtcdEntry> entry;
};

struct EtcdWatched {
    bool is_deleted = false;    ///< the key is gone
    bool is_cancelled = false;  ///< nothing will come any more
};

/// The condition of a write: the leader's key is the one that this term created, and the run's key
/// was not changed since (0: it is not there). So neither a former leader's write nor an earlier
/// one of ours that was held up on the way is carried out late.
struct EtcdGuard {
    std::string leader_key;
    std::uint64_t term = 0;
    std::uint64_t mod_revision = 0;
};

[[nodiscard]] EtcdRequest grant_request(std::int64_t ttl_seconds);
[[nodiscard]] EtcdRequest keep_alive_request(std::int64_t lease);
[[nodiscard]] EtcdRequest revoke_request(std::int64_t lease);
[[nodiscard]] EtcdRequest range_request(std::string_view key);
/// Reads the keys from `first` up to, and without, `end`: at most `limit`.
[[nodiscard]] EtcdRequest range_request(std::string_view first, std::string_view end,
                                        std::size_t limit);
/// Creates `key` unless it exists.
[[nodiscard]] EtcdRequest campaign_request(std::string_view key, std::string_view value,
                                           std::int64_t lease);
/// Puts `value`, or deletes the key if there is none.
[[nodiscard]] EtcdRequest guarded_request(const EtcdGuard& guard, std::string_view key,
                                          const std::optional<std::string>& value);
/// Deletions of `key` from `revision` on, as a stream.
[[nodiscard]] EtcdRequest watch_request(std::string_view key, std::uint64_t revision);

/// Every key's states before its last one up to `revision` are forgotten.
[[nodiscard]] EtcdRequest compaction_request(std::uint64_t revision);

/// The first key after all that begin with `prefix`, whose last byte is not 0xff.
[[nodiscard]] std::string end_of_prefix(std::string prefix);

/// Failure of these is BadMessage: what answered is no etcd, or an unknown one.
[[nodiscard]] Result<EtcdLease> read_grant(std::string_view body);
[[nodiscard]] Result<EtcdLease> read_keep_alive(std::string_view body);
[[nodiscard]] Result<EtcdRange> read_range(std::string_view body);
[[nodiscard]] Result<EtcdCampaign> read_campaign(std::string_view body);
[[nodiscard]] Result<EtcdGuarded> read_guarded(std::string_view body);
[[nodiscard]] Result<EtcdWatched> read_watched(std::string_view line);

/// The error in the body of a response that is not 200; nothing if the body holds no error.
[[nodiscard]] std::optional<std::string> read_error(std::string_view body);

}  // namespace ddprun::rdzv
