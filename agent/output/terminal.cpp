#include "agent/output/terminal.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace ddprun::agent {

Result<PseudoTerminal> open_pseudo_terminal(const char* maker, const WindowSize& window,
                                            const std::optional<TerminalModes>& modes) {
    PseudoTerminal terminal;
    terminal.ours.reset(::open(maker, O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
    if (!terminal.ours.is_open()) {
        return system_error(errno, std::string("opening ") + maker);
    }
    int is_locked = 0;
    if (::ioctl(terminal.ours.get(), TIOCSPTLCK, &is_locked) != 0) {
        return system_error(errno, "unlocking a pseudo-terminal");
    }
    // By the descriptor, not by name: /dev/pts may be another one's here, or not there at all.
    terminal.workers.reset(
        ::ioctl(terminal.ours.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
    if (!terminal.workers.is_open()) {
        return system_error(errno, "opening a pseudo-terminal");
    }
    const Result<TerminalModes> own = TerminalModes::of(terminal.workers.get());
    if (!own) {
        return own.error();
    }
    const Result<void> applied = modes.value_or(own->as_raw()).apply(terminal.workers.get());
    if (!applied) {
        return applied.error();
    }
    set_window(terminal.ours.get(), window);
    return terminal;
}

bool is_terminal(int fd) {
    return ::isatty(fd) == 1;
}

bool needs_returns(int fd) {
    const Result<TerminalModes> modes = TerminalModes::of(fd);
    return modes && !modes->adds_returns();
}

WindowSize window_of(int fd) {
    winsize window{};
    if (::ioctl(fd, TIOCGWINSZ, &window) != 0) {
        return {};
    }
    return {.rows = window.ws_row, .columns = window.ws_col};
}

void set_window(int fd, const WindowSize& window) {
    winsize size{};
    size.ws_row = static_cast<unsigned short>(window.rows);
    size.ws_col = static_cast<unsigned short>(window.columns);
    ::ioctl(fd, TIOCSWINSZ, &size);
}

}  // namespace ddprun::agent
