#include "worker_runtime/env/life_lock.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>

namespace ddprun::worker {

namespace {

static_assert(sizeof(pthread_mutex_t) <= sizeof(WorkerPageSlot::life_lock));

// The values of this process; its forked children inherit them, but do not hold the lock.
LastingPage held_page;
pid_t holder = 0;

/// A handler's stack, for when the stack is used up. Enough for the largest vector registers.
alignas(64) std::array<char, 64 * 1024> handler_stack;

/// Its default effect is restored already. An instruction that failed fails again when this has
/// returned, and the core has its address; what was sent, or failed in a system call, is sent
/// again.
void tell_fatal_signal(int signal, siginfo_t* info, void* /*context*/) {
    if (getpid() == holder) {
        held_page.slot->fatal_signal.store({.pid = holder, .signal = signal});
        ring_bell(held_page.header);
    }
    const bool comes_again = info->si_code > 0 && (signal == SIGSEGV || signal == SIGBUS ||
                                                   signal == SIGILL || signal == SIGFPE);
    if (!comes_again) {
        raise(signal);
    }
}

void handle_fatal_signals() {
    stack_t current{};
    if (sigaltstack(nullptr, &current) == 0 && (current.ss_flags & SS_DISABLE) != 0) {
        const stack_t ours{
            .ss_sp = handler_stack.data(), .ss_flags = 0, .ss_size = handler_stack.size()};
        sigaltstack(&ours, nullptr);
    }
    for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP}) {
        struct sigaction before {};
        if (sigaction(signal, nullptr, &before) != 0 || (before.sa_flags & SA_SIGINFO) != 0 ||
            before.sa_handler != SIG_DFL) {
            continue;
        }
        struct sigaction ours {};
        ours.sa_sigaction = tell_fatal_signal;
        ours.sa_flags = static_cast<int>(SA_SIGINFO | SA_RESETHAND | SA_ONSTACK);
        sigaction(signal, &ours, nullptr);
    }
}

}  // namespace

void ring_bell(WorkerPageHeader* header) {
    header->bell.fetch_add(1);
    syscall(SYS_futex, &header->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

LastingPage map_lasting_page(const char* path, std::uint32_t local_rank) {
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return {};
    }
    struct stat status {};
    const bool is_known = fstat(file, &status) == 0;
    const auto bytes = static_cast<std::size_t>(status.st_size);
    const bool fits = is_known && bytes >= worker_page_bytes(local_rank + 1, kWorkerPageVersionMin);
    void* const memory =
        fits ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (memory == MAP_FAILED) {
        return {};
    }
    auto* const header = static_cast<WorkerPageHeader*>(memory);
    if (header->magic != kWorkerPageMagic || header->version < kWorkerPageVersionMin ||
        local_rank >= header->slot_count) {
        munmap(memory, bytes);
        return {};
    }
    return {.header = header, .slot = worker_page_slots(header) + local_rank};
}

bool hold_life_lock(const LastingPage& page) {
    if (page.header == nullptr) {
        return false;
    }
    auto* const lock = static_cast<pthread_mutex_t*>(static_cast<void*>(&page.slot->life_lock));
    const int taken = pthread_mutex_trylock(lock);
    // It died when this process became another program, which is what runs here now.
    if (taken != 0 && (taken != EOWNERDEAD || pthread_mutex_consistent(lock) != 0)) {
        return false;
    }
    held_page = page;
    holder = getpid();
    ring_bell(page.header);
    handle_fatal_signals();
    return true;
}

}  // namespace ddprun::worker
