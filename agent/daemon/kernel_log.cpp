#include "agent/daemon/kernel_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include <fmt/format.h>

#include "base/os/read_files.hpp"

namespace ddprun::agent {

namespace {

// The kernel's own bound of one record; more records than these are not looked through.
constexpr std::size_t kRecordBytesMax = 8192;
constexpr int kRecordsMax = 4096;

std::optional<long long> memory_kills() {
    return memory_kills_in(read_whole("/proc/vmstat").value_or(""));
}

}  // namespace

KernelLog::KernelLog()
    : log_(open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)), kills_before_(memory_kills()) {
    if (log_.is_open()) {
        (void)lseek(log_.get(), 0, SEEK_END);
    }
}

std::string KernelLog::about(const WorkerEnd& end) {
    read_new();
    std::string note = notes_.about(end.pid, end.signal);
    const std::optional<long long> kills = memory_kills();
    if (note.empty() && end.signal == SIGKILL && kills && kills_before_ &&
        *kills > *kills_before_) {
        note = fmt::format("the OOM killer killed {} on this machine since the generation began",
                           *kills == *kills_before_ + 1
                               ? "a process"
                               : fmt::format("{} processes", *kills - *kills_before_));
    }
    return note;
}

void KernelLog::read_new() {
    if (!log_.is_open()) {
        return;
    }
    std::array<char, kRecordBytesMax> record;
    for (int i = 0; i < kRecordsMax; ++i) {
        const ssize_t got = read(log_.get(), record.data(), record.size());
        // EPIPE: records were overwritten before we have read them; the next one can be read.
        if (got < 0 && errno != EPIPE && errno != EINTR) {
            return;
        }
        if (got > 0) {
            notes_.take({record.data(), static_cast<std::size_t>(got)});
        }
    }
}

}  // namespace ddprun::agent
