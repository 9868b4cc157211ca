#include "base/check.hpp"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace ddprun {

namespace {

constexpr std::size_t kRingSize = 64;

struct EventRing {
    std::array<std::string, kRingSize> events;
    std::size_t next = 0;
};

// Per thread: the cores run on different threads and share nothing.
thread_local EventRing ring;

}  // namespace

void note_event(std::string_view event) {
    ring.events[ring.next % kRingSize].assign(event);
    ++ring.next;
}

void check_failed(const char* expression, const char* file, int line, const std::string& values) {
    fmt::print(stderr, "ddprun: internal error: check failed: {} [{}] at {}:{}\n", expression,
               values, file, line);
    for (std::size_t i = 0; i < kRingSize; ++i) {
        const std::string& event = ring.events[(ring.next + i) % kRingSize];
        if (!event.empty()) {
            fmt::print(stderr, "ddprun:   before that: {}\n", event);
        }
    }
    std::fflush(stderr);
    std::abort();
}

}  // namespace ddprun
