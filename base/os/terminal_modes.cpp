#include "base/os/terminal_modes.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include <fmt/format.h>

namespace ddprun {

Result<TerminalModes> TerminalModes::of(int fd) {
    TerminalModes found;
    if (::tcgetattr(fd, &found.modes_) != 0) {
        return system_error(errno, "reading a terminal's modes");
    }
    return found;
}

Result<TerminalModes> TerminalModes::from_bytes(std::string_view bytes) {
    TerminalModes found;
    if (bytes.size() != sizeof found.modes_) {
        return Error{ErrorCode::BadMessage,
                     fmt::format("a terminal's modes in {} bytes, not {}: only ddprun writes them",
                                 bytes.size(), sizeof found.modes_)};
    }
    std::memcpy(&found.modes_, bytes.data(), sizeof found.modes_);
    return found;
}

std::string TerminalModes::to_bytes() const {
    return {reinterpret_cast<const char*>(&modes_), sizeof modes_};
}

Result<void> TerminalModes::apply(int fd) const {
    if (::tcsetattr(fd, TCSANOW, &modes_) != 0) {
        return system_error(errno, "setting a terminal's modes");
    }
    return {};
}

TerminalModes TerminalModes::as_raw() const {
    TerminalModes raw = *this;
    ::cfmakeraw(&raw.modes_);
    return raw;
}

TerminalModes TerminalModes::without_wait() const {
    TerminalModes modes = *this;
    modes.modes_.c_cc[VMIN] = 0;
    modes.modes_.c_cc[VTIME] = 0;
    return modes;
}

bool TerminalModes::adds_returns() const {
    return (modes_.c_oflag & OPOST) != 0 && (modes_.c_oflag & ONLCR) != 0;
}

bool TerminalModes::operator==(const TerminalModes& other) const {
    return modes_.c_iflag == other.modes_.c_iflag && modes_.c_oflag == other.modes_.c_oflag &&
           modes_.c_cflag == other.modes_.c_cflag && modes_.c_lflag == other.modes_.c_lflag &&
           std::equal(std::begin(modes_.c_cc), std::end(modes_.c_cc),
                      std::begin(other.modes_.c_cc));
}

}  // namespace ddprun
