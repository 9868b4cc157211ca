// ddprun-preload.so: what `--watch preload` puts into every dynamically linked worker by
// LD_PRELOAD, so that its death is known at once (worker_runtime/env/life_lock.hpp). Descendants of
// the worker load it too; in them it does nothing. It needs the C library alone.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>

#include "worker_runtime/env/life_lock.hpp"

namespace {

constexpr long kSlotsMax = 4096;

[[gnu::constructor]] void hold() {
    const char* const path = getenv("DDPRUN_PAGE");
    const char* const slot = getenv("DDPRUN_SLOT");
    // A worker leads its session; those of its descendants that do, too, find the lock held.
    if (path == nullptr || *path == '\0' || slot == nullptr || getsid(0) != getpid()) {
        return;
    }
    const long number = strtol(slot, nullptr, 10);
    if (number < 0 || number >= kSlotsMax) {
        return;
    }
    (void)ddprun::worker::hold_life_lock(
        ddprun::worker::map_lasting_page(path, static_cast<std::uint32_t>(number)));
}

}  // namespace
