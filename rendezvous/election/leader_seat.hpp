#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <boost/asio/awaitable.hpp>

#include "base/result.hpp"
#include "rendezvous/election/leader_lease.hpp"
#include "rendezvous/etcd/etcd_messages.hpp"

namespace ddprun::rdzv {

/// Who holds the leader's key.
struct LeaderSeat {
    std::optional<EtcdEntry> holder;
    std::uint64_t revision = 0;  ///< of the store when it was looked at

    /// By this lease.
    [[nodiscard]] bool is_held_by(const LeaderLease& lease) const {
        return holder && lease.exists() && holder->lease == lease.id();
    }
};

/// Asks etcd. `lease` outlives the call.
[[nodiscard]] boost::asio::awaitable<Result<LeaderSeat>> look(LeaderLease& lease, std::string key);

/// Takes the key with a lease if nobody holds it; says who does then.
[[nodiscard]] boost::asio::awaitable<Result<LeaderSeat>> campaign(LeaderLease& lease,
                                                                  std::string key,
                                                                  std::string value);

}  // namespace ddprun::rdzv
