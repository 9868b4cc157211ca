#include "rendezvous/election/leader_seat.hpp"

#include <utility>

namespace ddprun::rdzv {

namespace asio = boost::asio;

asio::awaitable<Result<LeaderSeat>> look(LeaderLease& lease, std::string key) {
    EtcdRequest request = range_request(key);
    const Instant until = Instant::max();
    const Result<std::string> body = co_await lease.call(std::move(request), until);
    if (!body) {
        co_return body.error();
    }
    Result<EtcdRange> range = read_range(*body);
    if (!range) {
        co_return range.error();
    }
    LeaderSeat seat;
    seat.revision = range->revision;
    if (!range->entries.empty()) {
        seat.holder = std::move(range->entries.front());
    }
    co_return seat;
}

asio::awaitable<Result<LeaderSeat>> campaign(LeaderLease& lease, std::string key,
                                             std::string value) {
    const Result<void> obtained = co_await lease.obtain();
    if (!obtained) {
        co_return obtained.error();
    }
    EtcdRequest request = campaign_request(key, value, lease.id());
    const Instant until = lease.until();
    const Result<std::string> body = co_await lease.call(std::move(request), until);
    if (!body) {
        if (body.error().code == ErrorCode::Refused) {
            lease.forget();  // etcd does not know it
        }
        co_return body.error();
    }
    Result<EtcdCampaign> answer = read_campaign(*body);
    if (!answer) {
        co_return answer.error();
    }
    LeaderSeat seat;
    seat.revision = answer->revision;
    if (answer->has_won) {
        seat.holder.emplace();
        seat.holder->lease = lease.id();
        seat.holder->create_revision = answer->revision;
    } else {
        seat.holder = std::move(answer->incumbent);
    }
    co_return seat;
}

}  // namespace ddprun::rdzv
