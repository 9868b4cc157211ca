#include "tests/fake_gpu/machine/ledger.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>

#include "tests/fake_gpu/machine/gpus.hpp"
#include "tests/fake_gpu/machine/settings.hpp"

namespace fake_gpu {

namespace {

constexpr std::uint64_t kContextBytes = std::uint64_t{300} << 20;

/// The contents of a process's file for one GPU.
struct Entry {
    std::atomic<std::uint64_t> bytes;
    std::atomic<std::uint64_t> worked_at_ns;
};
static_assert(sizeof(Entry) == 2 * sizeof(std::uint64_t));

/// Returns the entry in a new file, and null when the file cannot be made.
Entry* make_entry(const std::string& path) {
    constexpr mode_t kOwnerOnly = 0600;
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, kOwnerOnly);
    if (fd < 0) {
        return nullptr;
    }
    void* mapped = MAP_FAILED;
    if (ftruncate(fd, sizeof(Entry)) == 0) {
        mapped = mmap(nullptr, sizeof(Entry), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    (void)close(fd);
    return mapped == MAP_FAILED ? nullptr : static_cast<Entry*>(mapped);
}

std::string own_path(int gpu) {
    return settings().state_folder + "/" + uuid_text(gpu) + "." + std::to_string(getpid());
}

Entry& own_entry(int gpu) {
    static std::array<Entry*, kMostGpus> entries{};
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    Entry*& entry = entries.at(static_cast<std::size_t>(gpu));
    if (entry == nullptr) {
        const std::string path = own_path(gpu);
        entry = make_entry(path);
        if (entry == nullptr) {
            give_up("cannot write " + path);
        }
        entry->bytes = kContextBytes;
    }
    return *entry;
}

/// Returns 0 when the file is no process's.
pid_t pid_in_name(const std::string& name, const std::string& prefix) {
    pid_t pid = 0;
    if (name.starts_with(prefix)) {
        (void)std::from_chars(name.data() + prefix.size(), name.data() + name.size(), pid);
    }
    return pid;
}

}  // namespace

bool is_alive(pid_t pid) {
    const auto fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (fd < 0) {
        return false;
    }
    pollfd end{.fd = fd, .events = POLLIN, .revents = 0};
    const bool has_ended = poll(&end, 1, 0) == 1;
    (void)close(fd);
    return !has_ended;
}

std::vector<Holder> holders_of(int gpu) {
    std::vector<Holder> holders;
    const std::string prefix = uuid_text(gpu) + ".";
    std::error_code ignored;
    for (const auto& file : std::filesystem::directory_iterator(settings().state_folder, ignored)) {
        const pid_t pid = pid_in_name(file.path().filename(), prefix);
        if (pid == 0) {
            continue;
        }
        if (!is_alive(pid)) {
            std::filesystem::remove(file.path(), ignored);
            continue;
        }
        // The file is shorter while its process makes it.
        std::array<std::uint64_t, 2> words{};
        std::ifstream(file.path(), std::ios::binary)
            .read(reinterpret_cast<char*>(words.data()), sizeof words);
        holders.push_back({.pid = pid, .bytes = words[0], .worked_at_ns = words[1]});
    }
    return holders;
}

std::uint64_t bytes_in_use(int gpu) {
    std::uint64_t sum = 0;
    for (const Holder& holder : holders_of(gpu)) {
        sum += holder.bytes;
    }
    return sum;
}

void make_context(int gpu) {
    (void)own_entry(gpu);
}

bool has_context(int gpu) {
    return access(own_path(gpu).c_str(), F_OK) == 0;
}

bool reserve_memory(int gpu, std::size_t bytes) {
    Entry& mine = own_entry(gpu);
    if (bytes_in_use(gpu) + bytes > settings().bytes_of_gpu) {
        return false;
    }
    mine.bytes += bytes;
    return true;
}

void release_memory(int gpu, std::size_t bytes) {
    own_entry(gpu).bytes -= bytes;
}

void note_work(int gpu) {
    constexpr std::uint64_t kNsPerSecond = 1'000'000'000;
    timespec now{};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    own_entry(gpu).worked_at_ns = static_cast<std::uint64_t>(now.tv_sec) * kNsPerSecond +
                                  static_cast<std::uint64_t>(now.tv_nsec);
}

}  // namespace fake_gpu
