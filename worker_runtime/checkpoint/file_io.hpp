#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "worker_runtime/checkpoint/hashing.hpp"
#include "worker_runtime/checkpoint/manifest.hpp"

/// Whole files in and out, with their checksums. Blocking; for any one thread.
namespace ddprun::worker {

/// Writes `pieces`, one behind the other, from the first byte of the open file `fd` on, with their
/// checksum. The pieces are not copied, the file is not synced. `path` is for errors.
[[nodiscard]] Result<ManifestFile> write_pieces(
    int fd, const std::string& name, const std::string& path,
    const std::vector<std::span<const std::byte>>& pieces);

/// Does the same with the file `name`, which must not exist, in the folder `folder_fd`, and syncs
/// it to disk.
[[nodiscard]] Result<ManifestFile> write_file(
    int folder_fd, const std::string& name, const std::string& path,
    const std::vector<std::span<const std::byte>>& pieces);

struct Unmap {
    std::size_t size = 0;
    void operator()(std::byte* pages) const { ::munmap(pages, size); }
};

/// Bytes on pages of their own, so that they are aligned to anything.
class FileBytes {
public:
    FileBytes() = default;
    /// Takes over pages that mmap() gave.
    FileBytes(std::byte* pages, std::size_t size) : pages_(pages, Unmap{size}) {}

    /// Memory for `size` bytes, zero.
    [[nodiscard]] static Result<FileBytes> allocate(std::uint64_t size);

    [[nodiscard]] std::span<std::byte> bytes() const {
        return {pages_.get(), pages_.get_deleter().size};
    }

private:
    std::unique_ptr<std::byte, Unmap> pages_;
};

/// A file that is open for reading, and its size.
struct OpenFile {
    UniqueFd fd;
    std::uint64_t size = 0;
    std::string path;
};

/// Opens a regular file; anything else is an error, and a pipe does not block.
[[nodiscard]] Result<OpenFile> open_file(int folder_fd, const std::string& name, std::string path);

/// The file's bytes, read into memory.
[[nodiscard]] Result<FileBytes> read_file(const OpenFile& file);

/// The file's bytes, mapped, to be read only. All are brought into the page cache first: a disk
/// that fails is an error here and no signal later. Linux before 5.14 reads them at the first
/// access, where a failing disk ends the process.
[[nodiscard]] Result<FileBytes> map_file(const OpenFile& file);

/// Is called with the number of bytes that were just read.
using OnRead = std::function<void(std::uint64_t bytes)>;

/// The file's checksum. Needs memory for a piece of the file, however large the file is.
[[nodiscard]] Result<std::string> hash_file(const OpenFile& file, const OnRead& on_read);

}  // namespace ddprun::worker
