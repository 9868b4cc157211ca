#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include <boost/asio/awaitable.hpp>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "base/tagged.hpp"
#include "rendezvous/etcd/etcd_client.hpp"

namespace ddprun::rdzv {

/// Keys of this daemon's competition in etcd.
struct EtcdKeys {
    std::string leader;  ///< who leads: "HOST:PORT", bound to its lease
    std::string runs;    ///< what the key of each run begins with; its job id follows
};
[[nodiscard]] EtcdKeys etcd_keys(const std::string& cluster);

/// The records of all runs, and when each was changed last.
struct EtcdRecords {
    std::map<JobId, std::string> records;
    std::map<JobId, std::uint64_t> mod_revisions;
};

/// Reads everything below `runs`, page by page, as long as `until()` has not come. The state of a
/// key is that of the moment of its page: for a leader, whose writes alone are carried out, all are
/// of one moment.
[[nodiscard]] boost::asio::awaitable<Result<EtcdRecords>> read_etcd_records(
    EtcdClient& client, std::string runs, const Limits& limits, std::function<Instant()> until);

}  // namespace ddprun::rdzv
