#include <thread>

#include "tests/fake_gpu/machine/settings.hpp"

namespace fake_gpu {

namespace {

/// A library ends after those that need it: LibTorch's static objects are gone.
[[gnu::destructor]] void end_late() {
    std::this_thread::sleep_for(settings().exit_delay);  // tidy: allow sleep
}

}  // namespace

}  // namespace fake_gpu
