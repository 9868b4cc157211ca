#include "agent/process/outer_pids.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <string>
#include <string_view>

#include "base/os/start_program.hpp"

namespace ddprun::agent {

int OuterPids::of(int child) const {
    if (!descriptors_.is_open()) {
        return child;
    }
    constexpr std::string_view kKey = "\nPid:\t";
    const UniqueFd pidfd = open_pidfd(child);
    const UniqueFd file(
        openat(descriptors_.get(), std::to_string(pidfd.get()).c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 1024> buffer;
    const ssize_t got = file.is_open() ? read(file.get(), buffer.data(), buffer.size()) : -1;
    const std::string_view text(buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    const std::size_t at = text.find(kKey);
    int pid = 0;
    if (at != std::string_view::npos) {
        std::from_chars(text.data() + at + kKey.size(), text.data() + text.size(), pid);
    }
    return pid > 0 ? pid : 0;
}

}  // namespace ddprun::agent
