#include "rendezvous/http/watcher_places.hpp"

#include "base/check.hpp"

namespace ddprun::rdzv {

bool WatcherPlaces::take(const std::string& address) {
    if (address.empty()) {
        const bool is_free = here_ < places_;
        here_ += is_free ? 1 : 0;
        return is_free;
    }
    const auto found = taken_.find(address);
    const std::size_t of_address = found == taken_.end() ? 0 : found->second;
    if (elsewhere_ >= places_ || of_address >= of_one_address_) {
        return false;
    }
    ++elsewhere_;
    ++taken_[address];
    return true;
}

void WatcherPlaces::leave(const std::string& address) {
    if (address.empty()) {
        DDP_CHECK(here_ > 0);
        --here_;
        return;
    }
    const auto found = taken_.find(address);
    DDP_CHECK(found != taken_.end(), address);
    --elsewhere_;
    if (--found->second == 0) {
        taken_.erase(found);
    }
}

}  // namespace ddprun::rdzv
