#include "agent/daemon/resident_memory.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <string_view>

#include <fmt/format.h>

#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

std::optional<std::uint64_t> resident_memory(int pid) {
    const UniqueFd file(open(fmt::format("/proc/{}/statm", pid).c_str(), O_RDONLY | O_CLOEXEC));
    std::array<char, 256> buffer;
    const ssize_t got = file.is_open() ? read(file.get(), buffer.data(), buffer.size()) : -1;
    const std::string_view text(buffer.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    const std::size_t second = text.find(' ') + 1;
    std::uint64_t pages = 0;
    if (second == 0 ||
        std::from_chars(text.data() + second, text.data() + text.size(), pages).ec != std::errc{}) {
        return std::nullopt;
    }
    return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace ddprun::agent
