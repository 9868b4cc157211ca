#include "agent/stacks/flight_recorder.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "agent/process/children.hpp"
#include "base/error.hpp"

namespace ddprun::agent {

namespace {

constexpr const char* kPipeVariable = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE";

/// A variable that is set and not empty.
std::optional<std::string> setting_of(int pid, std::string_view name) {
    std::optional<std::string> value = variable_of(pid, name);
    return value && !value->empty() ? value : std::nullopt;
}

/// As `pid` sees it, which may have another working folder.
std::string absolute(const std::string& path, int pid) {
    if (path.starts_with('/')) {
        return path;
    }
    std::array<char, PATH_MAX> buffer;
    const ssize_t length =
        readlink(fmt::format("/proc/{}/cwd", pid).c_str(), buffer.data(), buffer.size());
    return fmt::format(
        "{}/{}", std::string_view(buffer.data(), length > 0 ? static_cast<std::size_t>(length) : 0),
        path);
}

/// PyTorch's prefix of the rank: from the variable's new name, the old one, or its default.
std::string record_prefix(int pid) {
    for (const char* name : {"TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"}) {
        if (const std::optional<std::string> prefix = setting_of(pid, name)) {
            return absolute(*prefix, pid);
        }
    }
    const std::optional<std::string> cache = setting_of(pid, "XDG_CACHE_HOME");
    return cache.value_or(setting_of(pid, "HOME").value_or("/tmp") + "/.cache") +
           "/torch/comm_lib_trace_rank_";
}

void write_section(int file, const std::string& text) {
    const std::string all = fmt::format("--- NCCL's flight recorder\n{}\n\n", text);
    (void)!write(file, all.data(), all.size());
}

std::string folder_of(const std::string& path) {
    return path.substr(0, path.rfind('/'));
}

bool copy_all(int from, int to, std::int64_t size) {
    while (size > 0) {
        const ssize_t copied = sendfile(to, from, nullptr, static_cast<std::size_t>(size));
        if (copied <= 0) {
            return false;
        }
        size -= copied;
    }
    return true;
}

}  // namespace

FlightRecorders::FlightRecorders(std::string folder, std::int64_t bytes_max)
    : folder_(std::move(folder)),
      bytes_max_(bytes_max),
      events_(inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {}

void FlightRecorders::ask(int rank, const std::vector<int>& processes, int file) {
    const auto has_recorder = [](int pid) { return setting_of(pid, kPipeVariable).has_value(); };
    const auto found = std::find_if(processes.begin(), processes.end(), has_recorder);
    if (found == processes.end()) {
        return;
    }
    const int pid = *found;
    const std::string pipe =
        fmt::format("{}{}.pipe", absolute(*setting_of(pid, kPipeVariable), pid), rank);
    const std::string record = fmt::format("{}{}", record_prefix(pid), rank);
    // Watched first: no answer is missed.
    std::string fault = watch(record) ? press(pipe) : folder_of(record) + " cannot be watched";
    if (!fault.empty()) {
        write_section(file, fault);
        return;
    }
    asked_.push_back(Asked{.rank = rank, .file = file, .record = record});
}

bool FlightRecorders::watch(const std::string& record) {
    const std::string folder = folder_of(record);
    const int watch =
        inotify_add_watch(events_.get(), folder.c_str(), IN_CLOSE_WRITE | IN_MOVED_TO);
    if (watch >= 0) {
        watched_[watch] = folder;
    }
    return watch >= 0;
}

/// Empty if the worker will see it.
std::string FlightRecorders::press(const std::string& pipe) {
    // Without a reader this fails instead of waiting for one.
    const UniqueFd fd(open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
    if (!fd.is_open()) {
        return errno == ENXIO ? fmt::format("nobody reads {}", pipe)
                              : system_error(errno, fmt::format("cannot open {}", pipe)).what;
    }
    struct stat status {};
    if (fstat(fd.get(), &status) != 0 || !S_ISFIFO(status.st_mode)) {
        return fmt::format("{} is no pipe", pipe);
    }
    if (write(fd.get(), "1", 1) != 1) {
        return system_error(errno, fmt::format("cannot write to {}", pipe)).what;
    }
    return {};
}

void FlightRecorders::collect(Instant deadline) {
    take_events();
    while (!asked_.empty()) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(
            deadline - std::chrono::steady_clock::now());
        pollfd events{.fd = events_.get(), .events = POLLIN, .revents = 0};
        if (left.count() <= 0 || poll(&events, 1, static_cast<int>(left.count())) == 0) {
            break;
        }
        take_events();
    }
    for (const Asked& asked : asked_) {
        write_section(asked.file, fmt::format("it was asked and did not write {} in time; PyTorch "
                                              "looks once a second whether it is asked",
                                              asked.record));
    }
    asked_.clear();
}

void FlightRecorders::take_events() {
    // Room for many, as the kernel lays them out.
    alignas(inotify_event) std::array<char, 16 * (sizeof(inotify_event) + NAME_MAX + 1)> buffer;
    ssize_t length = 0;
    while ((length = read(events_.get(), buffer.data(), buffer.size())) > 0) {
        for (ssize_t at = 0; at < length;) {
            const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
            at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
            const auto folder = watched_.find(event->wd);
            if (folder == watched_.end() || event->len == 0) {
                continue;
            }
            const std::string path = fmt::format("{}/{}", folder->second, event->name);
            const auto found =
                std::find_if(asked_.begin(), asked_.end(),
                             [&path](const Asked& asked) { return asked.record == path; });
            if (found != asked_.end()) {
                write_section(found->file, keep(*found));
                asked_.erase(found);
            }
        }
    }
}

/// Says what has become of the record.
std::string FlightRecorders::keep(const Asked& asked) {
    const std::string name = fmt::format("nccl_trace_rank_{}", asked.rank);
    const std::string path = fmt::format("{}/{}", folder_, name);
    const UniqueFd from(open(asked.record.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
    struct stat status {};
    if (!from.is_open() || fstat(from.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
        return fmt::format("{} cannot be read", asked.record);
    }
    if (status.st_size > bytes_max_) {
        return fmt::format("{} has {} bytes, more than the {} that are kept", asked.record,
                           status.st_size, bytes_max_);
    }
    const UniqueFd to(
        open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!to.is_open() || !copy_all(from.get(), to.get(), status.st_size)) {
        (void)unlink(path.c_str());
        return fmt::format("{} cannot be copied to {}", asked.record, path);
    }
    return fmt::format("saved as {}", name);
}

}  // namespace ddprun::agent
