#include "rendezvous/election/leader_lease.hpp"

#include <chrono>
#include <utility>

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

/// g++ 12 takes a temporary one in a coroutine for uninitialised.
const Result<void> kDone;

/// A prolongation is tried this often within one lease.
constexpr int kProlongationsPerLease = 4;
/// This part of the lease is not used.
constexpr int kMarginPart = 10;

Instant now() {
    return std::chrono::steady_clock::now();
}

}  // namespace

LeaderLease::LeaderLease(asio::io_context& io, const std::vector<Endpoint>& etcds,
                         const Limits& limits)
    : io_(io),
      etcds_(etcds),
      limits_(limits),
      client_(std::make_shared<EtcdClient>(io, etcds, limits)) {}

asio::awaitable<Result<void>> LeaderLease::obtain() {
    const Instant sent = now();
    if (exists() && sent - sent_ < limits_.leader_lease / 2) {
        co_return kDone;
    }
    forget();
    EtcdRequest request =
        grant_request(std::chrono::ceil<std::chrono::seconds>(limits_.leader_lease).count());
    const Instant until = Instant::max();
    const Result<std::string> body = co_await call(std::move(request), until);
    if (!body) {
        co_return body.error();
    }
    const Result<EtcdLease> lease = read_grant(*body);
    if (!lease) {
        co_return lease.error();
    }
    take(*lease, sent);
    co_return kDone;
}

asio::awaitable<Result<void>> LeaderLease::prolong(Instant until) {
    const Milliseconds each = prolong_every();
    const Instant sent = now();
    EtcdRequest request = keep_alive_request(lease_.id);
    const Result<std::string> body = co_await client_->call(std::move(request), each, until);
    if (!body) {
        co_return body.error();
    }
    const Result<EtcdLease> lease = read_keep_alive(*body);
    if (!lease) {
        co_return lease.error();
    }
    if (lease->ttl_seconds == 0) {
        forget();
        co_return Error{ErrorCode::TimedOut, "etcd has ended the lease"};
    }
    take(*lease, sent);
    co_return kDone;
}

asio::awaitable<void> LeaderLease::give_up() {
    if (!exists()) {
        co_return;
    }
    const auto client = std::make_shared<EtcdClient>(io_, etcds_, limits_);
    EtcdRequest request = revoke_request(lease_.id);
    const Milliseconds each = limits_.etcd_timeout / 2;
    const Instant until = now() + limits_.etcd_timeout;
    const Result<std::string> revoked = co_await client->call(std::move(request), each, until);
    static_cast<void>(revoked);
    client->close();
    forget();
}

asio::awaitable<Result<std::string>> LeaderLease::call(EtcdRequest request, Instant until) {
    // One that has lost its leader is silent until it knows that: another one may have a new one.
    return client_->call(std::move(request), limits_.etcd_timeout / 2, until);
}

void LeaderLease::take(const EtcdLease& lease, Instant sent) {
    const Duration length = std::chrono::seconds(lease.ttl_seconds);
    lease_ = lease;
    sent_ = sent;
    until_ = sent + length - length / kMarginPart;
}

Instant LeaderLease::prolongation_due() const {
    return sent_ + prolong_every();
}

Milliseconds LeaderLease::prolong_every() const {
    return limits_.leader_lease / kProlongationsPerLease;
}

}  // namespace ddprun::rdzv
