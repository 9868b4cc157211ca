#include "rendezvous/journal/etcd_records.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace ddprun::rdzv {

namespace asio = boost::asio;

namespace {

/// Keys of one page. Etcd answers with whole pages, so one that is too large, or takes too long, is
/// asked for again in halves.
constexpr std::size_t kPageKeysMax = 16;

}  // namespace

EtcdKeys etcd_keys(const std::string& cluster) {
    return EtcdKeys{.leader = fmt::format("/ddprun/{}/leader", cluster),
                    .runs = fmt::format("/ddprun/{}/run/", cluster)};
}

asio::awaitable<Result<EtcdRecords>> read_etcd_records(EtcdClient& client, std::string runs,
                                                       const Limits& limits,
                                                       std::function<Instant()> until) {
    const std::string end = end_of_prefix(runs);
    std::string first = runs;
    std::size_t page_keys = kPageKeysMax;
    EtcdRecords records;
    while (true) {
        EtcdRequest request = range_request(first, end, page_keys);
        const Instant last_moment = until();
        const Result<std::string> body =
            co_await client.call(std::move(request), limits.etcd_timeout, last_moment);
        if (!body && page_keys > 1 && std::chrono::steady_clock::now() < last_moment) {
            page_keys /= 2;
            continue;
        }
        if (!body) {
            co_return body.error();
        }
        Result<EtcdRange> page = read_range(*body);
        if (!page) {
            co_return page.error();
        }
        for (EtcdEntry& entry : page->entries) {
            const JobId job(entry.key.substr(std::min(runs.size(), entry.key.size())));
            records.mod_revisions[job] = entry.mod_revision;
            records.records[job] = std::move(entry.value);
            first = entry.key + '\0';
        }
        if (records.records.size() > limits.jobs_max) {
            co_return Error{ErrorCode::LimitExceeded,
                            fmt::format("etcd holds more than {} runs below {}; delete those that "
                                        "are over with etcdctl",
                                        limits.jobs_max, runs)};
        }
        if (!page->has_more || page->entries.empty()) {
            co_return records;
        }
    }
}

}  // namespace ddprun::rdzv
