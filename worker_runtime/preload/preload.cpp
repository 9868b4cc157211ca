// ddprun-preload.so: what `--watch preload` puts into every dynamically linked worker by
// LD_PRELOAD, so that its death is known at once (worker_runtime/env/life_lock.hpp), and when its
// main() began. Descendants of the worker load it too; in them it does nothing. It needs the C
// library alone.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>

#include "worker_runtime/env/life_lock.hpp"

namespace {

using Main = int (*)(int, char**, char**);
using LibcStartMain = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);

constexpr long kSlotsMax = 4096;

ddprun::worker::LastingPage page;
Main main_of_program;

int stamp_and_run_main(int argc, char** argv, char** environment) {
    if (page.slot != nullptr) {
        timespec now{};
        clock_gettime(CLOCK_MONOTONIC, &now);
        page.slot->reached_main_ns.store(now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec);
    }
    return main_of_program(argc, argv, environment);
}

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
    const auto mapped = ddprun::worker::map_lasting_page(path, static_cast<std::uint32_t>(number));
    if (ddprun::worker::hold_life_lock(mapped)) {
        page = mapped;
    }
}

}  // namespace

/// The C library's own, called by every program's first instructions.
extern "C" [[gnu::visibility("default")]] int __libc_start_main(Main main, int argc, char** argv,
                                                                void (*init)(), void (*fini)(),
                                                                void (*rtld_fini)(),
                                                                void* stack_end) {
    main_of_program = main;
    void* const next = dlsym(RTLD_NEXT, "__libc_start_main");
    return reinterpret_cast<LibcStartMain>(next)(stamp_and_run_main, argc, argv, init, fini,
                                                 rtld_fini, stack_end);
}
