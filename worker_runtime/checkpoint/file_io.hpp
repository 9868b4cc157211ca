#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "worker_runtime/checkpoint/hashing.hpp"

/// Whole files in and out, with their checksums. Blocking; for any one thread.
namespace ddprun::worker {

/// What is written or read at once: large for the disk, small enough that the processor's cache
/// still has it for the checksum.
constexpr std::size_t kChunkBytes = 1UL << 20;

/// Writes one new file from start to end.
class FileWriter {
public:
    /// Creates `name`, which must not exist, in the folder `folder_fd`. `path` is for errors.
    [[nodiscard]] static Result<FileWriter> create(int folder_fd, const std::string& name,
                                                   std::string path);

    /// The bytes are not copied: they must live and stay as they are until finish().
    [[nodiscard]] std::optional<Error> append(std::span<const std::byte> bytes);

    /// Writes what is left, syncs to disk and closes. After it size() and checksum() are the
    /// file's.
    [[nodiscard]] std::optional<Error> finish();

    [[nodiscard]] std::uint64_t size() const { return size_; }
    [[nodiscard]] std::string checksum() const { return hasher_.hex(); }

private:
    FileWriter(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

    std::optional<Error> flush();

    UniqueFd fd_;
    std::string path_;
    Xxh3Hasher hasher_;
    std::vector<iovec> pending_;  // at most kPiecesMax, at most kChunkBytes together
    std::size_t pending_bytes_ = 0;
    std::uint64_t size_ = 0;
};

/// Bytes on pages of their own, so that they are aligned to anything.
class FileBytes {
public:
    FileBytes() = default;
    FileBytes(FileBytes&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
    FileBytes& operator=(FileBytes&&) = delete;
    FileBytes(const FileBytes&) = delete;
    FileBytes& operator=(const FileBytes&) = delete;
    ~FileBytes();

    /// Memory for `size` bytes, zero.
    [[nodiscard]] static Result<FileBytes> allocate(std::uint64_t size);

    [[nodiscard]] std::span<std::byte> bytes() { return {data_, size_}; }
    [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

private:
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

/// A file that is open for reading, and its size.
struct OpenFile {
    UniqueFd fd;
    std::uint64_t size = 0;
    std::string path;
};

/// Opens a regular file; anything else is an error, and a pipe does not block.
[[nodiscard]] Result<OpenFile> open_file(int folder_fd, const std::string& name, std::string path);

/// The file's bytes, read into memory rather than mapped: a file that shrinks or a disk that fails
/// is then an error instead of a signal. Adds what it reads to `hasher` when there is one.
[[nodiscard]] Result<FileBytes> read_file(const OpenFile& file, Xxh3Hasher* hasher);

}  // namespace ddprun::worker
