#include "worker_runtime/checkpoint/file_io.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

namespace ddprun::worker {

namespace {

constexpr std::size_t kPiecesMax = 64;

}  // namespace

Result<FileWriter> FileWriter::create(int folder_fd, const std::string& name, std::string path) {
    UniqueFd fd(::openat(folder_fd, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd.is_open()) {
        return system_error(errno, path + " cannot be created");
    }
    return FileWriter(std::move(fd), std::move(path));
}

std::optional<Error> FileWriter::append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const std::size_t size = std::min(bytes.size(), kChunkBytes - pending_bytes_);
        // writev() only reads what iovec has no way to call constant.
        pending_.push_back(iovec{const_cast<std::byte*>(bytes.data()), size});
        pending_bytes_ += size;
        hasher_.add(bytes.first(size));
        bytes = bytes.subspan(size);
        if (pending_bytes_ == kChunkBytes || pending_.size() == kPiecesMax) {
            if (std::optional<Error> problem = flush()) {
                return problem;
            }
        }
    }
    return std::nullopt;
}

std::optional<Error> FileWriter::flush() {
    std::size_t first = 0;
    while (first < pending_.size()) {
        const ssize_t written =
            ::writev(fd_.get(), &pending_[first], static_cast<int>(pending_.size() - first));
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            // No byte written and no errno is what a full device may also say.
            return system_error(written < 0 ? errno : ENOSPC,
                                fmt::format("{} cannot be written beyond {} bytes (free space "
                                            "there or name another folder)",
                                            path_, size_));
        }
        size_ += static_cast<std::uint64_t>(written);
        auto left = static_cast<std::size_t>(written);
        while (first < pending_.size() && left >= pending_[first].iov_len) {
            left -= pending_[first].iov_len;
            ++first;
        }
        if (left > 0) {
            pending_[first].iov_base = static_cast<std::byte*>(pending_[first].iov_base) + left;
            pending_[first].iov_len -= left;
        }
    }
    pending_.clear();
    pending_bytes_ = 0;
    return std::nullopt;
}

std::optional<Error> FileWriter::finish() {
    if (std::optional<Error> problem = flush()) {
        return problem;
    }
    if (::fsync(fd_.get()) != 0) {
        return system_error(errno, path_ + " cannot be synced to disk");
    }
    // Network file systems report a full disk at the end.
    if (::close(fd_.release()) != 0 && errno != EINTR) {
        return system_error(errno, path_ + " cannot be closed");
    }
    return std::nullopt;
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
    bytes.data_ = static_cast<std::byte*>(pages);
    bytes.size_ = size;
    return bytes;
}

FileBytes::~FileBytes() {
    if (data_ != nullptr) {
        ::munmap(data_, size_);
    }
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

Result<FileBytes> read_file(const OpenFile& file, Xxh3Hasher* hasher) {
    Result<FileBytes> read = FileBytes::allocate(file.size);
    if (!read) {
        return Error{read.error().code, file.path + ": " + read.error().what};
    }
    std::span<std::byte> rest = read->bytes();
    while (!rest.empty()) {
        const ssize_t got = ::read(file.fd.get(), rest.data(), std::min(rest.size(), kChunkBytes));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return system_error(errno, file.path + " cannot be read");
        }
        if (got == 0) {
            return Error{ErrorCode::BadMessage,
                         fmt::format("{} ended {} bytes before its size of {}", file.path,
                                     rest.size(), file.size)};
        }
        if (hasher != nullptr) {
            hasher->add(rest.first(static_cast<std::size_t>(got)));
        }
        rest = rest.subspan(static_cast<std::size_t>(got));
    }
    return read;
}

}  // namespace ddprun::worker
