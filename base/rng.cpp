#include "base/rng.hpp"

#include <sys/random.h>

#include "base/check.hpp"

namespace ddprun {

std::uint64_t random_seed() {
    std::uint64_t seed = 0;
    // The kernel is the source of chance.
    const ssize_t got = getrandom(&seed, sizeof seed, 0);  // tidy: allow machine_call
    DDP_CHECK(got == static_cast<ssize_t>(sizeof seed), got);
    return seed;
}

}  // namespace ddprun
