#include "rendezvous/store/core/init_traffic.hpp"

#include <chrono>

#include "rendezvous/store/protocol/request.hpp"

namespace ddprun::rdzv {

namespace {

std::int64_t nanoseconds(Instant at) {
    return std::chrono::nanoseconds(at.time_since_epoch()).count();
}

}  // namespace

InitTraffic::InitTraffic(std::size_t expected, SharedInitTraffic& shared)
    : expected_(expected), shared_(shared) {
    shared_.all_here_ns = 0;
    shared_.group_ns = 0;
    shared_.is_over = false;
}

void InitTraffic::note_connected(Instant now, std::size_t clients) {
    if (clients >= expected_ && shared_.all_here_ns.load() == 0) {
        shared_.all_here_ns = nanoseconds(now);
    }
}

/// PyTorch 2's keys are "/default_pg/0//cpu//0/RANK" with Gloo, "/default_pg/0//cuda//…" with NCCL;
/// who waits for one asks for it next. Other groups have other names.
bool InitTraffic::is_of_default_group(std::string_view request) {
    constexpr std::string_view kGroup = "default_pg/0/";
    constexpr std::size_t kLookedAt = 64;  // the operation, lengths, what prefixes there may be
    switch (StoreOpcode{static_cast<std::uint8_t>(request.front())}) {
        case StoreOpcode::Set:
        case StoreOpcode::Get:
        case StoreOpcode::MultiSet:
        case StoreOpcode::MultiGet:
            return request.substr(0, kLookedAt).find(kGroup) != std::string_view::npos;
        default:
            return false;
    }
}

void InitTraffic::note_of_default_group(Instant now, StoreClient client) {
    const std::size_t number = client.value();
    if (asked_.size() <= number) {
        asked_.resize(number + 1);
    }
    asked_count_ += asked_[number] ? 0 : 1;
    asked_[number] = true;
    if (asked_count_ >= expected_) {
        shared_.group_ns = nanoseconds(now);
    }
}

}  // namespace ddprun::rdzv
