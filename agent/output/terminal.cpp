#include "agent/output/terminal.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace ddprun::agent {

Result<PseudoTerminal> open_pseudo_terminal(const char* maker, const WindowSize& window) {
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
    termios modes{};
    if (::tcgetattr(terminal.workers.get(), &modes) != 0) {
        return system_error(errno, "reading a pseudo-terminal's modes");
    }
    ::cfmakeraw(&modes);
    if (::tcsetattr(terminal.workers.get(), TCSANOW, &modes) != 0) {
        return system_error(errno, "making a pseudo-terminal raw");
    }
    set_window(terminal.ours.get(), window);
    return terminal;
}

bool is_terminal(int fd) {
    return ::isatty(fd) == 1;
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
