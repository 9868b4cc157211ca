#include <cstdio>

#include "worker_runtime/env/environment.hpp"

int main() {
    const auto place = ddprun::worker::read_environment();
    if (place.has_error()) {
        std::puts(place.error().what.c_str());
        return 1;
    }
    std::printf("rank %d of %d\n", place->rank.value(), place->world_size);
    return 0;
}
