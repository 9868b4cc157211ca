// Goal: what a grammar of the command line accepts means what it may mean. Method: the first byte
// chooses one of them, the rest is the value.
#include "launcher/plan/values.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "tests/fuzz/choices.hpp"

namespace ddprun::launcher {

namespace {

void check_endpoint(std::string_view text) {
    if (const Result<rdzv::Endpoint> endpoint = rdzv::parse_endpoint(text)) {
        const Result<rdzv::Endpoint> again = rdzv::parse_endpoint(to_string(*endpoint));
        DDP_CHECK(again.has_value() && *again == *endpoint, text);
    }
}

void check_streams(const StreamChoice& streams) {
    const auto is_choice = [](int choice) { return choice >= 0 && choice <= 3; };
    DDP_CHECK(is_choice(streams.everywhere), streams.everywhere);
    for (const auto& [rank, choice] : streams.by_rank) {
        DDP_CHECK(rank >= 0 && is_choice(choice), rank, choice);
    }
}

void check_value(unsigned grammar, const Given& given) {
    if (grammar == 0) {
        const Result<NodeCounts> counts = parse_nnodes(given);
        DDP_CHECK(!counts || (counts->least >= 1 && counts->least <= counts->most), given.value);
        DDP_CHECK(!counts || std::is_sorted(counts->sizes.begin(), counts->sizes.end()),
                  given.value);
    } else if (grammar == 1) {
        const Result<Milliseconds> time = parse_seconds(given, Milliseconds(1));
        DDP_CHECK(!time || (*time >= Milliseconds(1) && *time <= std::chrono::hours(24 * 365)),
                  given.value);
    } else if (grammar == 2) {
        if (const Result<HostAndPort> endpoint = parse_host_and_port(given)) {
            DDP_CHECK(!endpoint->host.empty() && is_plain(endpoint->host), given.value);
            const rdzv::Endpoint whole{endpoint->host, endpoint->port.value_or(1)};
            const Result<rdzv::Endpoint> again = rdzv::parse_endpoint(to_string(whole));
            DDP_CHECK(whole.port == 0 || (again.has_value() && *again == whole), given.value);
        }
    } else if (grammar == 3) {
        const Result<StreamChoice> streams = parse_streams(given);
        check_streams(streams ? *streams : StreamChoice{});
    } else if (grammar == 4) {
        const Result<std::vector<int>> ranks = parse_ranks(given);
        DDP_CHECK(!ranks || std::is_sorted(ranks->begin(), ranks->end()), given.value);
        DDP_CHECK(!ranks || (!ranks->empty() && ranks->front() >= 0), given.value);
    } else if (grammar == 5) {
        const Result<std::vector<int>> signals = parse_signals(given);
        DDP_CHECK(!signals || *std::min_element(signals->begin(), signals->end()) > 0);
    } else if (grammar == 6) {
        if (const Result<std::map<std::string, Given>> pairs = parse_key_values(given)) {
            for (const auto& [key, entry] : *pairs) {
                DDP_CHECK(!key.empty() && !entry.value.empty(), given.value);
            }
        }
    } else if (const Result<std::string> name = parse_name(given, 255)) {
        DDP_CHECK(is_plain(*name) && name->size() <= 255, *name);
        DDP_CHECK(name->find('/') == std::string::npos && name->front() != '.', *name);
    }
}

}  // namespace

}  // namespace ddprun::launcher

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    ddprun::fuzz::Choices choices(data, size);
    const unsigned grammar = choices.below(8);
    const std::string value(choices.rest());
    ddprun::launcher::check_endpoint(value);
    ddprun::launcher::check_value(grammar, {"--flag", value});
    return 0;
}
