#include "agent/daemon/terminal_relay.hpp"

#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include <boost/system/error_code.hpp>

#include "base/os/give_to_loop.hpp"

namespace ddprun::agent {

namespace {

using boost::asio::posix::descriptor_base;

constexpr std::size_t kReadBytes = 4096;

std::optional<char> key_of(const termios& modes, std::size_t which) {
    const cc_t key = modes.c_cc[which];
    return key == _POSIX_VDISABLE ? std::nullopt : std::optional(static_cast<char>(key));
}

/// Returns the signal keys of the worker's terminal now; a debugger that edits lines changes them.
SignalKeys keys_at(int keyboard) {
    const Result<TerminalModes> modes = TerminalModes::of(keyboard);
    if (!modes || (modes->values().c_lflag & ISIG) == 0) {
        return {};
    }
    return {.interrupt = key_of(modes->values(), VINTR),
            .quit = key_of(modes->values(), VQUIT),
            .suspend = key_of(modes->values(), VSUSP)};
}

}  // namespace

TerminalRelay::TerminalRelay(boost::asio::io_context& io, int terminal, const Limits& limits,
                             Events events)
    : terminal_(terminal),
      typed_bytes_max_(limits.typed_bytes_max),
      events_(std::move(events)),
      keys_(limits.second_interrupt_after),
      typed_(io),
      keyboard_(io),
      job_control_(io, [this](int signal) { on_job_control(signal); }) {
    // Asio would make the description non-blocking, which the shell shares.
    UniqueFd watch(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    event.events = EPOLLONESHOT;
    if (watch.is_open() && ::epoll_ctl(watch.get(), EPOLL_CTL_ADD, terminal_, &event) == 0) {
        (void)give_to_loop(typed_, std::move(watch));
    }
}

TerminalRelay::~TerminalRelay() {
    give_back();
}

void TerminalRelay::begin(Generation generation, LocalRank local_rank, UniqueFd keyboard) {
    end();
    if (!typed_.is_open() || !give_to_loop(keyboard_, std::move(keyboard))) {
        events_.say(
            "warning: nothing can be typed to the worker: no descriptor is left to watch the "
            "terminal with; raise `ulimit -n`");
        return;
    }
    partner_ = Partner{generation, local_rank};
    keys_.begin();
    job_control_.start({SIGTSTP, SIGCONT}, events_.say);
    take();
}

void TerminalRelay::end() {
    if (!partner_) {
        return;
    }
    partner_.reset();
    give_back();
    job_control_.stop();
    waiting_.clear();
    boost::system::error_code ignored;
    keyboard_.close(ignored);
}

bool TerminalRelay::is_with(Generation generation, LocalRank local_rank) const {
    return partner_ && partner_->generation == generation && partner_->local_rank == local_rank;
}

/// A terminal that does not control us knows of no background.
bool TerminalRelay::is_in_foreground() const {
    const pid_t foreground = ::tcgetpgrp(terminal_);
    return foreground < 0 || foreground == ::getpgrp();
}

/// From the background it would stop us.
void TerminalRelay::take() {
    const Result<TerminalModes> now = TerminalModes::of(terminal_);
    if (!partner_ || !now || !is_in_foreground()) {
        return;
    }
    if (!raw_ || *now != *raw_) {
        before_ = *now;
        // As it is then: not all modes can be had everywhere.
        const Result<void> applied = now->as_raw().without_wait().apply(terminal_);
        const Result<TerminalModes> raw = TerminalModes::of(terminal_);
        if (!applied || !raw) {
            before_.reset();
            return;
        }
        raw_ = *raw;
        events_.on_raw(*before_, *raw_);
    }
    wait_for_keys();
}

/// Unless a shell that has the terminal by now has done so.
void TerminalRelay::give_back() {
    const std::optional<TerminalModes> before = std::exchange(before_, std::nullopt);
    const std::optional<TerminalModes> raw = std::exchange(raw_, std::nullopt);
    const Result<TerminalModes> now = TerminalModes::of(terminal_);
    if (before && raw && now && *now == *raw && is_in_foreground()) {
        static_cast<void>(before->apply(terminal_));
    }
}

void TerminalRelay::wait_for_keys() {
    if (std::exchange(is_waiting_for_keys_, true)) {
        return;
    }
    epoll_event event{};
    event.events = EPOLLIN | EPOLLONESHOT;
    ::epoll_ctl(typed_.native_handle(), EPOLL_CTL_MOD, terminal_, &event);
    typed_.async_wait(descriptor_base::wait_read, [this](boost::system::error_code failure) {
        is_waiting_for_keys_ = false;
        if (!failure) {
            on_keys();
        }
    });
}

/// Leaves the keys unread for other readers in the background, or without a worker to type to.
void TerminalRelay::on_keys() {
    epoll_event event{};
    const int ready = ::epoll_wait(typed_.native_handle(), &event, 1, 0);
    if (!raw_ || !is_in_foreground()) {
        return;
    }
    std::array<char, kReadBytes> buffer;
    const ssize_t count = ready == 1 ? ::read(terminal_, buffer.data(), buffer.size()) : 0;
    const bool is_gone = (event.events & (EPOLLHUP | EPOLLERR)) != 0;
    if (count <= 0 && (is_gone || (count < 0 && errno != EAGAIN && errno != EINTR))) {
        return;
    }
    if (count > 0) {
        type(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
    }
    if (raw_) {
        wait_for_keys();
    }
}

void TerminalRelay::type(std::string_view bytes) {
    const Typed typed =
        keys_.type(std::chrono::steady_clock::now(), keys_at(keyboard_.native_handle()),
                   events_.is_interrupt_ours(partner_->local_rank), bytes);
    waiting_.append(typed.passed, 0,
                    typed_bytes_max_ - std::min(typed_bytes_max_, waiting_.size()));
    write_waiting();
    if (typed.is_hint_due) {
        events_.say("Ctrl-C went to the worker; once more within a second, and the job ends");
    }
    for (int i = 0; i < typed.interrupts; ++i) {
        events_.on_interrupt();
    }
    if (typed.suspends) {
        // To all of our group, as the terminal does it; we are told like the others.
        ::kill(0, SIGTSTP);
    }
}

void TerminalRelay::write_waiting() {
    if (is_waiting_to_write_ || !keyboard_.is_open()) {
        return;
    }
    while (!waiting_.empty()) {
        const ssize_t count = ::write(keyboard_.native_handle(), waiting_.data(), waiting_.size());
        if (count > 0) {
            waiting_.erase(0, static_cast<std::size_t>(count));
        } else if (count < 0 && errno == EAGAIN) {
            break;
        } else if (count == 0 || errno != EINTR) {
            waiting_.clear();
        }
    }
    if (waiting_.empty()) {
        return;
    }
    is_waiting_to_write_ = true;
    keyboard_.async_wait(descriptor_base::wait_write, [this](boost::system::error_code /*why*/) {
        // The wait for the last worker may end when there is another one.
        is_waiting_to_write_ = false;
        write_waiting();
    });
}

void TerminalRelay::on_job_control(int signal) {
    if (signal == SIGTSTP) {
        give_back();
        stop_like_others();
    }
    take();
    events_.on_continued();
}

/// Returns when this process goes on, or at once where there is no shell that would let it.
void TerminalRelay::stop_like_others() {
    job_control_.stop();
    ::raise(SIGTSTP);
    job_control_.start({SIGTSTP, SIGCONT}, events_.say);
}

}  // namespace ddprun::agent
