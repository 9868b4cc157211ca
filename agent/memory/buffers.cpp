#include "agent/memory/buffers.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace ddprun::agent {

namespace {

constexpr unsigned int kNoExecSeal = 8;  // MFD_NOEXEC_SEAL, unknown to old headers

Result<UniqueFd> reopen(int fd, int mode) {
    UniqueFd fresh(::open(fmt::format("/proc/self/fd/{}", fd).c_str(), mode | O_CLOEXEC));
    if (!fresh.is_open()) {
        return system_error(errno, "cannot open memory of a checkpoint once more");
    }
    return fresh;
}

}  // namespace

Result<void> Buffers::make(BufferId id, std::uint64_t size) {
    constexpr unsigned int kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    UniqueFd file(::memfd_create("ddprun-checkpoint", kFlags | kNoExecSeal));
    if (!file.is_open() && errno == EINVAL) {
        file.reset(::memfd_create("ddprun-checkpoint", kFlags));
    }
    if (!file.is_open()) {
        return system_error(errno, "no memory for a checkpoint (memfd_create)");
    }
    if (size > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) ||
        ::ftruncate(file.get(), static_cast<off_t>(size)) != 0 ||
        // A worker that cut it short would kill those that have it mapped.
        ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return system_error(errno, fmt::format("no {} bytes of memory for a checkpoint", size));
    }
    files_[id] = std::move(file);
    return {};
}

void Buffers::drop(const std::vector<BufferId>& ids) {
    for (const BufferId id : ids) {
        files_.erase(id);
    }
}

Result<UniqueFd> Buffers::open_to_write(BufferId id) const {
    return reopen(files_.at(id).get(), O_RDWR);
}

Result<UniqueFd> Buffers::open_to_read(BufferId id) const {
    return reopen(files_.at(id).get(), O_RDONLY);
}

Result<void> Buffers::read(BufferId id, std::uint64_t offset, std::size_t size,
                           std::string& out) const {
    const std::size_t before = out.size();
    out.resize(before + size);
    std::size_t done = 0;
    while (done < size) {
        const ssize_t got = ::pread(files_.at(id).get(), out.data() + before + done, size - done,
                                    static_cast<off_t>(offset + done));
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return system_error(got == 0 ? EIO : errno, "cannot read memory of a checkpoint");
        }
        done += got > 0 ? static_cast<std::size_t>(got) : 0;
    }
    return {};
}

Result<void> Buffers::write(BufferId id, std::uint64_t offset, std::span<const std::byte> bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t got = ::pwrite(files_.at(id).get(), bytes.data() + done, bytes.size() - done,
                                     static_cast<off_t>(offset + done));
        if (got < 0 && errno != EINTR) {
            return system_error(errno, "no memory for a copy of a checkpoint");
        }
        done += got > 0 ? static_cast<std::size_t>(got) : 0;
    }
    return {};
}

Result<std::vector<CheckpointShelf::Room>> KeptCheckpoints::begin(
    const ShelfOwner& owner, const StepKey& key, const std::vector<worker::MemoryFile>& files) {
    Result<std::vector<CheckpointShelf::Room>> rooms = shelf.begin(owner, key, files);
    drop_forgotten();
    if (!rooms) {
        return rooms;
    }
    for (const CheckpointShelf::Room& room : *rooms) {
        if (!room.is_new) {
            continue;
        }
        if (const Result<void> made = buffers.make(room.buffer, room.size); !made) {
            shelf.abandon_unmade(owner);
            drop_forgotten();
            return made.error();
        }
    }
    return rooms;
}

}  // namespace ddprun::agent
