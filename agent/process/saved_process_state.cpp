#include "agent/process/saved_process_state.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <string_view>

#include <fmt/format.h>

#include "base/check.hpp"
#include "base/take_until.hpp"

namespace ddprun::agent {

namespace {

/// The kernel's struct sigaction, of which the first word is the handler and zeros are the default;
/// smaller than this everywhere.
using KernelAction = std::array<std::uintptr_t, 8>;
constexpr std::size_t kKernelMaskBytes = 8;

/// Two signals belong to the C library, whose sigaction() will not hear of them; yet its
/// posix_spawn() has programs start with both ignored. So the kernel is asked.
bool is_ignored_now(int signal) {
    KernelAction action{};
    return syscall(SYS_rt_sigaction, signal, nullptr, action.data(), kKernelMaskBytes) == 0 &&
           action[0] == reinterpret_cast<std::uintptr_t>(SIG_IGN);
}

void set_ignored(int signal, bool is_ignored) {
    const KernelAction action{reinterpret_cast<std::uintptr_t>(is_ignored ? SIG_IGN : SIG_DFL)};
    // Fails for SIGKILL and SIGSTOP, which no process can have changed.
    (void)syscall(SYS_rt_sigaction, signal, action.data(), nullptr, kKernelMaskBytes);
}

void open_missing_standard_fds() {
    for (int fd = 0; fd <= 2; ++fd) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            // The lowest free number is taken, which is `fd`. It is not close-on-exec: it stands in
            // for a descriptor that every program expects to have.
            const int opened = open("/dev/null", O_RDWR);
            DDP_CHECK(opened == fd, opened, fd);
        }
    }
}

}  // namespace

SavedProcessState SavedProcessState::capture() {
    open_missing_standard_fds();
    SavedProcessState state;
    sigset_t mask;
    sigemptyset(&mask);
    DDP_CHECK(sigprocmask(SIG_SETMASK, nullptr, &mask) == 0, errno);
    for (int signal = 1; signal <= kSignals; ++signal) {
        const auto index = static_cast<std::size_t>(signal);
        state.blocked_[index] = sigismember(&mask, signal) == 1;
        state.ignored_[index] = is_ignored_now(signal);
    }
    DDP_CHECK(getrlimit(RLIMIT_NOFILE, &state.open_files_) == 0, errno);
    return state;
}

Result<SavedProcessState> SavedProcessState::from_text(const std::string& text) {
    std::string_view rest = text;
    std::array<std::uint64_t, 4> numbers{};
    bool is_read = true;
    for (std::uint64_t& number : numbers) {
        const std::string_view word = take_until(rest, ':');
        const char* word_end = word.data() + word.size();
        const auto [end, error] = std::from_chars(word.data(), word_end, number, 16);
        is_read = is_read && error == std::errc{} && end == word_end;
    }
    if (!is_read || !rest.empty()) {
        return Error{ErrorCode::InvalidArgument,
                     fmt::format("process state '{}' is not four hexadecimal numbers with ':' "
                                 "between them; only ddprun writes it",
                                 text)};
    }
    SavedProcessState state;
    // Signal 0 does not exist, so that signal n is bit n - 1 and 64 of them fit.
    state.ignored_ = std::bitset<kSignals + 1>(numbers[0]) << 1;
    state.blocked_ = std::bitset<kSignals + 1>(numbers[1]) << 1;
    state.open_files_.rlim_cur = numbers[2];
    state.open_files_.rlim_max = numbers[3];
    return state;
}

std::string SavedProcessState::to_text() const {
    return fmt::format("{:x}:{:x}:{:x}:{:x}", (ignored_ >> 1).to_ullong(),
                       (blocked_ >> 1).to_ullong(), open_files_.rlim_cur, open_files_.rlim_max);
}

int SavedProcessState::restore() const {
    if (setrlimit(RLIMIT_NOFILE, &open_files_) != 0) {
        return errno;
    }
    sigset_t mask;
    sigemptyset(&mask);
    for (int signal = 1; signal <= kSignals; ++signal) {
        const auto index = static_cast<std::size_t>(signal);
        set_ignored(signal, ignored_[index] && signal != SIGPIPE);
        if (blocked_[index]) {
            sigaddset(&mask, signal);
        }
    }
    return sigprocmask(SIG_SETMASK, &mask, nullptr) == 0 ? 0 : errno;
}

bool SavedProcessState::ignores(int signal) const {
    return ignored_.test(static_cast<std::size_t>(signal));
}

bool SavedProcessState::blocks(int signal) const {
    return blocked_.test(static_cast<std::size_t>(signal));
}

bool SavedProcessState::operator==(const SavedProcessState& other) const {
    return to_text() == other.to_text();
}

void ignore_asking_signals() {
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGALRM, SIGUSR1, SIGUSR2,
                             SIGTSTP, SIGTTIN, SIGTTOU}) {
        struct sigaction action {};
        action.sa_handler = SIG_IGN;
        DDP_CHECK(sigaction(signal, &action, nullptr) == 0, signal, errno);
    }
}

}  // namespace ddprun::agent
