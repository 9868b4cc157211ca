#include "rendezvous/server/log_writer.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/os/signals_blocked.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::rdzv {

namespace {

/// For the handler of SIGABRT, which is given nothing else.
std::atomic<const LogWriter*> log_at_abort{nullptr};

}  // namespace

struct LogWriter::State {
    State(int to, const Limits& limits_)
        : own_fd(::fcntl(to, F_DUPFD_CLOEXEC, 0)),
          limits(limits_),
          flushed(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        DDP_CHECK(own_fd.is_open() && flushed.is_open(), errno);
    }

    /// The thread.
    void run() {
        std::unique_lock lock(mutex);
        for (;;) {
            wake.wait(lock, [this] { return !queued.empty() || dropped > 0 || is_ending; });
            if (queued.empty() && dropped == 0) {
                return;
            }
            std::string text = std::exchange(queued, {});
            const std::size_t count = text.size();
            if (const std::size_t lost = std::exchange(dropped, 0); lost > 0) {
                text += fmt::format(
                    "ddprun-rendezvous: {} lines are missing here: nobody read this log\n", lost);
            }
            lock.unlock();
            write_whole(text);
            written += count;
            if (is_flush_wanted) {
                const std::uint64_t one = 1;
                [[maybe_unused]] const ssize_t told = ::write(flushed.get(), &one, sizeof one);
            }
            lock.lock();
        }
    }

    /// A failed write of the log cannot be reported anywhere: the rest is left out.
    void write_whole(std::string_view text) const {
        while (!text.empty()) {
            const ssize_t count = ::write(own_fd.get(), text.data(), text.size());
            if (count > 0) {
                text.remove_prefix(static_cast<std::size_t>(count));
            } else if (count < 0 && errno == EAGAIN) {
                pollfd room{.fd = own_fd.get(), .events = POLLOUT, .revents = 0};
                ::poll(&room, 1, -1);
            } else if (count == 0 || errno != EINTR) {
                return;
            }
        }
    }

    /// A thread that was detached may still write when the number that was given has another owner.
    const UniqueFd own_fd;
    const Limits limits;
    const UniqueFd flushed;  ///< an eventfd: more has been written while a flush waits
    std::atomic<bool> is_flush_wanted{false};
    std::atomic<std::uint64_t> said{0};  ///< bytes that were ever queued
    std::atomic<std::uint64_t> written{0};
    std::mutex mutex;
    std::condition_variable wake;
    // Guarded by mutex:
    std::string queued;
    std::size_t dropped = 0;  ///< lines that came after `queued`
    bool is_ending = false;
};

LogWriter::LogWriter(int fd, const Limits& limits) : state_(std::make_shared<State>(fd, limits)) {
    const SignalsBlocked blocked;
    thread_ = std::thread([state = state_] { state->run(); });
    ::pthread_setname_np(thread_.native_handle(), "ddprun-log");
}

LogWriter::~LogWriter() {
    const LogWriter* self = this;
    log_at_abort.compare_exchange_strong(self, nullptr);
    const bool is_flushed = flush();
    {
        const std::lock_guard lock(state_->mutex);
        state_->is_ending = true;
    }
    state_->wake.notify_one();
    if (is_flushed) {
        thread_.join();
    } else {
        // It stands in a write, which nothing but its reader can end.
        thread_.detach();  // tidy: allow detach
    }
}

void LogWriter::write(std::string_view lines) {
    {
        const std::lock_guard lock(state_->mutex);
        if (state_->queued.size() + lines.size() > state_->limits.log_backlog_bytes_max) {
            ++state_->dropped;
        } else {
            state_->queued += lines;
            state_->said += lines.size();
        }
    }
    state_->wake.notify_one();
}

bool LogWriter::flush() const {
    timespec begin{};
    ::clock_gettime(CLOCK_MONOTONIC, &begin);
    const std::uint64_t wanted = state_->said;
    state_->is_flush_wanted = true;
    while (state_->written < wanted) {
        timespec now{};
        ::clock_gettime(CLOCK_MONOTONIC, &now);
        const long passed_ms = static_cast<long>(now.tv_sec - begin.tv_sec) * 1000 +
                               (now.tv_nsec - begin.tv_nsec) / 1'000'000;
        const long left_ms =
            static_cast<long>(state_->limits.log_flush_timeout.count()) - passed_ms;
        pollfd progress{.fd = state_->flushed.get(), .events = POLLIN, .revents = 0};
        if (left_ms <= 0 || ::poll(&progress, 1, static_cast<int>(left_ms)) == 0) {
            return false;
        }
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t got = ::read(state_->flushed.get(), &count, sizeof count);
    }
    return true;
}

void flush_at_abort(const LogWriter& log) {
    log_at_abort = &log;
    struct sigaction action {};
    action.sa_handler = [](int) {
        if (const LogWriter* const log_then = log_at_abort) {
            log_then->flush();
        }
    };
    // Then abort() ends the program as ever.
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    DDP_CHECK(::sigaction(SIGABRT, &action, nullptr) == 0, errno);
}

}  // namespace ddprun::rdzv
