#include "base/os/read_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "base/os/unique_fd.hpp"

namespace ddprun {

std::optional<std::string> read_whole(const std::string& path) {
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open()) {
        return std::nullopt;
    }
    std::string text;
    std::array<char, 4096> buffer;
    for (;;) {
        const ssize_t got = read(file.get(), buffer.data(), buffer.size());
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return text;
        }
        text.append(buffer.data(), static_cast<std::size_t>(got));
    }
}

std::optional<std::string> read_beginning(const std::string& path, std::size_t bytes_max) {
    const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    // The content of a pipe could not be read a second time.
    if (!file.is_open() || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        return std::nullopt;
    }
    return read_part(file.get(), bytes_max);
}

std::string read_part(int fd, std::size_t bytes_max, off_t from) {
    std::string text(bytes_max, '\0');
    std::size_t size = 0;
    while (size < bytes_max) {
        const ssize_t got =
            pread(fd, text.data() + size, bytes_max - size, from + static_cast<off_t>(size));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        size += static_cast<std::size_t>(got);
    }
    text.resize(size);
    return text;
}

}  // namespace ddprun
