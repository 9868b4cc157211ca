#include "worker_runtime/checkpoint/file_io.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace ddprun::worker {

namespace {

/// The size of one write or read: large for the disk, small enough that the processor's cache
/// still has it for the checksum.
constexpr std::size_t kChunkBytes = 1UL << 20;
constexpr std::size_t kPiecesMax = 64;
/// The kernel is asked to write to the disk each time so many bytes have been added to a file.
constexpr std::uint64_t kWritebackBytes = 8UL << 20;

/// Writes all of `pieces` behind the first `size` bytes and forgets them; `size` grows by what is
/// written.
std::optional<Error> write_all(int fd, const std::string& path, std::vector<iovec>& pieces,
                               std::uint64_t& size) {
    std::span<iovec> rest(pieces);
    while (!rest.empty()) {
        const ssize_t written =
            ::pwritev(fd, rest.data(), static_cast<int>(rest.size()), static_cast<off_t>(size));
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            // No byte written and no errno is what a full device may also say.
            return system_error(written < 0 ? errno : ENOSPC,
                                fmt::format("{} cannot be written beyond {} bytes (free space "
                                            "there or name another folder)",
                                            path, size));
        }
        size += static_cast<std::uint64_t>(written);
        auto left = static_cast<std::size_t>(written);
        while (!rest.empty() && left >= rest.front().iov_len) {
            left -= rest.front().iov_len;
            rest = rest.subspan(1);
        }
        if (left > 0) {
            rest.front().iov_base = static_cast<std::byte*>(rest.front().iov_base) + left;
            rest.front().iov_len -= left;
        }
    }
    pieces.clear();
    return std::nullopt;
}

/// Lets the disk write what the file has beyond `begun`, once that is enough. The disk then works
/// while the next bytes are hashed and copied, and fsync() has little left to wait for. A failure
/// here needs no report: fsync() writes what is missing and reports every error.
void begin_writeback(int fd, std::uint64_t size, std::uint64_t& begun) {
    if (size - begun >= kWritebackBytes) {
        (void)::sync_file_range(fd, static_cast<off64_t>(begun), static_cast<off64_t>(size - begun),
                                SYNC_FILE_RANGE_WRITE);
        begun = size;
    }
}

/// Reads the next bytes of `file`, of which `left` have not been read; at most `into` holds.
Result<std::size_t> read_some(const OpenFile& file, std::span<std::byte> into, std::uint64_t left) {
    ssize_t got = 0;
    do {
        got = ::read(file.fd.get(), into.data(), std::min(into.size(), kChunkBytes));
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return system_error(errno, file.path + " cannot be read");
    }
    if (got == 0) {
        return Error{ErrorCode::BadMessage, fmt::format("{} ended {} bytes before its size of {}",
                                                        file.path, left, file.size)};
    }
    return static_cast<std::size_t>(got);
}

}  // namespace

Result<ManifestFile> write_pieces(int fd, const std::string& name, const std::string& path,
                                  const std::vector<std::span<const std::byte>>& pieces) {
    ManifestFile file{.name = name};
    Xxh3Hasher hasher;
    std::vector<iovec> chunk;  // at most kPiecesMax, at most kChunkBytes together
    std::size_t room = kChunkBytes;
    std::uint64_t begun = 0;
    for (std::span<const std::byte> rest : pieces) {
        while (!rest.empty()) {
            const std::span<const std::byte> part = rest.first(std::min(rest.size(), room));
            // pwritev() only reads what iovec has no way to call constant.
            chunk.push_back(iovec{const_cast<std::byte*>(part.data()), part.size()});
            hasher.add(part);
            rest = rest.subspan(part.size());
            room -= part.size();
            if (room > 0 && chunk.size() < kPiecesMax) {
                continue;
            }
            if (const auto problem = write_all(fd, path, chunk, file.size)) {
                return *problem;
            }
            begin_writeback(fd, file.size, begun);
            room = kChunkBytes;
        }
    }
    if (const auto problem = write_all(fd, path, chunk, file.size)) {
        return *problem;
    }
    file.xxh3_128 = hasher.hex();
    return file;
}

Result<ManifestFile> write_file(int folder_fd, const std::string& name, const std::string& path,
                                const std::vector<std::span<const std::byte>>& pieces) {
    UniqueFd fd(::openat(folder_fd, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.is_open()) {
        return system_error(errno, path + " cannot be created");
    }
    Result<ManifestFile> file = write_pieces(fd.get(), name, path, pieces);
    if (!file) {
        return file.error();
    }
    if (::fsync(fd.get()) != 0) {
        return system_error(errno, path + " cannot be synced to disk");
    }
    // Network file systems report a full disk at the end.
    if (::close(fd.release()) != 0 && errno != EINTR) {
        return system_error(errno, path + " cannot be closed");
    }
    return file;
}

Result<FileBytes> FileBytes::allocate(std::uint64_t size) {
    FileBytes bytes;
    if (size == 0) {
        return bytes;
    }
    void* const pages =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) {
        return system_error(errno, fmt::format("no memory for {} bytes", size));
    }
    return FileBytes(static_cast<std::byte*>(pages), size);
}

Result<OpenFile> open_file(int folder_fd, const std::string& name, std::string path) {
    OpenFile file;
    file.fd.reset(::openat(folder_fd, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file.fd.is_open()) {
        const std::string what = errno == ENOENT ? " is missing" : " cannot be opened";
        return system_error(errno, path + what);
    }
    struct stat status {};
    if (::fstat(file.fd.get(), &status) != 0) {
        return system_error(errno, path + " cannot be examined");
    }
    if (!S_ISREG(status.st_mode)) {
        return Error{ErrorCode::BadMessage, path + " is not a file"};
    }
    file.size = static_cast<std::uint64_t>(status.st_size);
    file.path = std::move(path);
    return file;
}

Result<FileBytes> read_file(const OpenFile& file) {
    Result<FileBytes> read = FileBytes::allocate(file.size);
    if (!read) {
        return Error{read.error().code, file.path + ": " + read.error().what};
    }
    std::span<std::byte> rest = read->bytes();
    while (!rest.empty()) {
        const Result<std::size_t> got = read_some(file, rest, rest.size());
        if (!got) {
            return got.error();
        }
        rest = rest.subspan(*got);
    }
    return read;
}

Result<FileBytes> map_file(const OpenFile& file) {
    if (file.size == 0) {
        return FileBytes();
    }
    constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ, which older headers lack
    void* const pages = ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
    if (pages == MAP_FAILED) {
        return system_error(errno, file.path + " cannot be mapped");
    }
    FileBytes mapped(static_cast<std::byte*>(pages), file.size);
    if (::madvise(pages, file.size, kPopulateRead) != 0 && errno != EINVAL) {
        return system_error(errno == EFAULT ? EIO : errno, file.path + " cannot be read");
    }
    return mapped;
}

Result<std::string> hash_file(const OpenFile& file, const OnRead& on_read) {
    const Result<FileBytes> buffer =
        FileBytes::allocate(std::min<std::uint64_t>(file.size, kChunkBytes));
    if (!buffer) {
        return Error{buffer.error().code, file.path + ": " + buffer.error().what};
    }
    Xxh3Hasher hasher;
    for (std::uint64_t left = file.size; left > 0;) {
        const std::span<std::byte> into =
            buffer->bytes().first(std::min<std::uint64_t>(left, kChunkBytes));
        const Result<std::size_t> got = read_some(file, into, left);
        if (!got) {
            return got.error();
        }
        hasher.add(into.first(*got));
        left -= *got;
        on_read(*got);
    }
    return hasher.hex();
}

}  // namespace ddprun::worker
