#include "agent/watch/store_silence.hpp"

#include <chrono>
#include <cstddef>

#include <fmt/format.h>

#include "base/printable.hpp"

namespace ddprun::agent {

namespace {

constexpr std::size_t kShownColumns = 64;  ///< of a key

}  // namespace

bool StoreSilence::is_silent(Instant now, Milliseconds after, std::uint64_t requests) {
    if (requests_ != requests) {
        requests_ = requests;
        since_ = now;
    }
    return since_ + after <= now;
}

std::optional<HangSeen> StoreSilence::seen(Milliseconds after, int world_size,
                                           const std::string& host, const rdzv::StoreWaits& waits) {
    if (waits.waiting == 0) {
        return std::nullopt;
    }
    std::string text = fmt::format(
        "nobody has asked the workers' store on {} for {} s, and {} of its {} client{} wait{} in "
        "it, {} for the key {}",
        host, std::chrono::duration_cast<std::chrono::seconds>(after).count(), waits.waiting,
        waits.clients, waits.clients == 1 ? "" : "s", waits.waiting == 1 ? "s" : "", waits.for_key,
        printable(waits.key, kShownColumns));
    if (static_cast<std::size_t>(world_size) > waits.clients) {
        text += fmt::format("; of {} ranks not all have come to it", world_size);
    }
    return HangSeen{.host = host, .text = text};
}

}  // namespace ddprun::agent
