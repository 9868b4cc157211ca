#include "agent/daemon/life_watch.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>
#include <utility>

#include "base/check.hpp"
#include "base/os/signals_blocked.hpp"

namespace ddprun::agent {

namespace {

/// Until a word of them differs from its value, or a wake-up arrives at one.
long wait_for_any(const std::vector<futex_waitv>& words) {
    return syscall(SYS_futex_waitv, words.data(), words.size(), 0, nullptr, 0);
}

/// For want of memory, which this needs none of: until the bell rings or it is time to try again.
void wait_at_bell(std::atomic<std::uint32_t>& bell, std::uint32_t value) {
    constexpr timespec kTryAgainAfter{.tv_sec = 1, .tv_nsec = 0};
    syscall(SYS_futex, &bell, FUTEX_WAIT, value, &kTryAgainAfter, nullptr, 0);
}

futex_waitv waiter(std::atomic<std::uint32_t>& word, std::uint32_t value) {
    return {.val = value,
            .uaddr = reinterpret_cast<std::uintptr_t>(&word),
            .flags = FUTEX_32,  // not private: another process changes it
            .__reserved = 0};
}

}  // namespace

bool LifeWatch::is_possible() {
    // A kernel that has this call refuses an empty list with EINVAL.
    return syscall(SYS_futex_waitv, nullptr, 0, 0, nullptr, 0) < 0 && errno == EINVAL;
}

LifeWatch::LifeWatch(WorkerPage& page, OnSign on_sign, OnSaves on_saves)
    : page_(page),
      on_sign_(std::move(on_sign)),
      on_saves_(std::move(on_saves)),
      sent_(std::min(static_cast<std::size_t>(page.slot_count()), kSlotsMax)) {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
    ::pthread_setname_np(thread_.native_handle(), "life");
}

LifeWatch::~LifeWatch() {
    is_ending_ = true;
    std::atomic<std::uint32_t>& bell = page_.bell();
    bell.fetch_add(1);
    syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    thread_.join();
}

void LifeWatch::run() {
    std::vector<futex_waitv> words;
    words.reserve(sent_.size() + 1);
    for (;;) {
        words.clear();
        // Read before all else: what rings from here on ends the wait.
        words.push_back(waiter(page_.bell(), page_.bell().load()));
        if (is_ending_) {
            return;
        }
        for (std::size_t i = 0; i < sent_.size(); ++i) {
            const std::uint32_t old_value = look_at(i);
            words.push_back(waiter(page_.life_word(LocalRank(static_cast<int>(i))), old_value));
        }
        look_at_saves();
        const long woken = wait_for_any(words);
        if (woken < 0 && errno == ENOMEM) {
            // Signs may be late: the parent of a worker learns of its end anyway.
            wait_at_bell(page_.bell(), static_cast<std::uint32_t>(words.front().val));
        } else {
            DDP_CHECK(woken >= 0 || errno == EAGAIN || errno == EINTR, errno);
        }
    }
}

std::uint32_t LifeWatch::look_at(std::size_t index) {
    const LocalRank local_rank(static_cast<int>(index));
    Sent& told = sent_[index];
    const FatalSignal fatal = page_.fatal_signal(local_rank);
    if (fatal.pid != 0 && !told.is_signal_told) {
        told.is_signal_told = true;
        on_sign_(local_rank, fatal);
    }
    std::atomic<std::uint32_t>& word = page_.life_word(local_rank);
    std::uint32_t value = word.load();
    // The kernel wakes no thread at a lock that has no waiters. A lock that no thread holds must
    // not be touched, or no thread can take it any more.
    while ((value & FUTEX_TID_MASK) != 0 && (value & FUTEX_WAITERS) == 0) {
        if (word.compare_exchange_weak(value, value | FUTEX_WAITERS)) {
            value |= FUTEX_WAITERS;
        }
    }
    const bool has_ended = (value & FUTEX_OWNER_DIED) != 0;
    if (has_ended && !told.is_end_told) {
        on_sign_(local_rank, {});
    }
    told.is_end_told = has_ended;
    return value;
}

void LifeWatch::look_at_saves() {
    bool is_new = false;
    for (std::size_t i = 0; i < sent_.size(); ++i) {
        const std::uint64_t writes = page_.save_writes(LocalRank(static_cast<int>(i)));
        is_new |= std::exchange(sent_[i].save_writes, writes) != writes;
    }
    if (is_new) {
        on_saves_();
    }
}

}  // namespace ddprun::agent
