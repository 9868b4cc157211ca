#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>

#include "base/instant.hpp"
#include "base/result.hpp"
#include "rendezvous/etcd/etcd_client.hpp"

namespace ddprun::rdzv {

/// One daemon's lease in etcd and what it knows of its end. It is believed from the moment that a
/// request was sent, which is before etcd counts from, and less than wholly used, because clocks
/// run at different speeds. One thread; the owner keeps it alive while a coroutine runs.
class LeaderLease {
public:
    LeaderLease(boost::asio::io_context& io, const std::vector<Endpoint>& etcds,
                const Limits& limits);
    LeaderLease(const LeaderLease&) = delete;
    LeaderLease& operator=(const LeaderLease&) = delete;

    /// There is a lease with at least half of its time left: a new one, or the one whose campaign
    /// was not answered and may yet be won.
    [[nodiscard]] boost::asio::awaitable<Result<void>> obtain();

    /// Asks etcd to count anew, until `until`. Failure does not say that the lease is over, unless
    /// exists() is false then.
    [[nodiscard]] boost::asio::awaitable<Result<void>> prolong(Instant until);

    /// Tells etcd, within Limits::etcd_timeout. It runs out by itself if that fails. Works after
    /// close().
    [[nodiscard]] boost::asio::awaitable<void> give_up();

    /// One call to etcd on the lease's connection: what is asked for in a row with it.
    [[nodiscard]] boost::asio::awaitable<Result<std::string>> call(EtcdRequest request,
                                                                   Instant until);

    /// Etcd does not know it any more, or it is of no use: the next obtain() gets another.
    void forget() { lease_ = EtcdLease(); }

    /// Ends what is under way.
    void close() { client_->close(); }

    [[nodiscard]] bool exists() const { return lease_.id != 0; }
    [[nodiscard]] std::int64_t id() const { return lease_.id; }
    [[nodiscard]] Instant until() const { return until_; }
    /// When to prolong() it.
    [[nodiscard]] Instant prolongation_due() const;
    /// Between two tries.
    [[nodiscard]] Milliseconds prolong_every() const;

private:
    void take(const EtcdLease& lease, Instant sent);

    boost::asio::io_context& io_;
    const std::vector<Endpoint> etcds_;
    const Limits limits_;
    const std::shared_ptr<EtcdClient> client_;
    EtcdLease lease_;  ///< id 0: none
    Instant sent_ = Instant::min();
    Instant until_ = Instant::min();
};

}  // namespace ddprun::rdzv
