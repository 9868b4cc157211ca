#include "agent/process/children.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>

#include <fmt/format.h>

#include "base/os/read_files.hpp"
#include "base/take_until.hpp"
#include "base/whole_number.hpp"

namespace ddprun::agent {

namespace {

// More of one process are not looked for.
constexpr std::size_t kDescendantsMax = 8192;

/// The numeric entries of a folder of /proc.
std::vector<int> numbers_in(const std::string& path) {
    std::vector<int> numbers;
    const Directory directory(opendir(path.c_str()));
    if (!directory) {
        return numbers;
    }
    while (const dirent* entry = readdir(directory.get())) {
        if (const std::optional<int> number = whole_number<int>(entry->d_name)) {
            numbers.push_back(*number);
        }
    }
    return numbers;
}

void append_pids(std::string_view text, std::vector<int>& pids) {
    while (!text.empty()) {
        if (const std::optional<int> pid = whole_number<int>(take_until(text, ' '))) {
            pids.push_back(*pid);
        }
    }
}

/// The numbers between blanks from the third field on.
std::vector<long long> fields_of(std::string_view text) {
    std::vector<long long> fields;
    while (!text.empty()) {
        const std::string_view word = take_until(text, ' ');  // The last one has a line break.
        (void)std::from_chars(word.data(), word.data() + word.size(), fields.emplace_back());
    }
    return fields;
}

Duration time_of_ticks(long long ticks) {
    static const long long per_second = sysconf(_SC_CLK_TCK);
    return std::chrono::microseconds(ticks * 1'000'000 / per_second);
}

/// Returns the text after `key` and a tab in a process's status; empty if it has no such line.
std::string status_line(int pid, std::string_view key) {
    const std::string start = fmt::format("\n{}:\t", key);
    const std::optional<std::string> text = read_whole(fmt::format("/proc/{}/status", pid));
    const std::size_t line = text ? text->find(start) : std::string::npos;
    if (line == std::string::npos) {
        return {};
    }
    const std::size_t value = line + start.size();
    return text->substr(value, text->find('\n', value) - value);
}

/// The last look has failed for want of means, and not because its object is gone.
bool lacked_means() {
    return errno == EMFILE || errno == ENFILE || errno == ENOMEM;
}

/// For kernels built without the `children` files: all processes whose parent is `pid`. Returns
/// nothing if it could not read all of them.
std::optional<std::vector<int>> children_by_scan(int pid, const std::string& proc) {
    std::vector<int> children;
    errno = 0;
    for (const int candidate : numbers_in(proc)) {
        const std::optional<ProcessStat> stat = stat_of(candidate, proc);
        if (stat && stat->parent == pid) {
            children.push_back(candidate);
        } else if (!stat && lacked_means()) {
            return std::nullopt;
        }
    }
    return lacked_means() ? std::nullopt : std::optional(std::move(children));
}

/// Returns the children of the process with threads in `folder`; nothing if it could not read all
/// lists. Children belong to the thread that made or adopted them. The kernel walks the list from
/// one read to the next; only reaping, which is the parent's, could make it lose its place.
std::optional<std::vector<int>> children_in(const std::string& folder) {
    std::vector<int> children;
    errno = 0;
    for (const int thread : numbers_in(folder)) {
        if (const auto text = read_whole(fmt::format("{}/{}/children", folder, thread))) {
            append_pids(*text, children);
        } else if (lacked_means()) {
            return std::nullopt;
        }
    }
    return lacked_means() ? std::nullopt : std::optional(std::move(children));
}

bool has_children_files() {
    static const bool has = access("/proc/thread-self/children", R_OK) == 0;
    return has;
}

}  // namespace

std::optional<ProcessStat> stat_of(int pid, const std::string& proc) {
    const std::optional<std::string> text = read_whole(fmt::format("{}/{}/stat", proc, pid));
    if (!text) {
        return std::nullopt;
    }
    // The name may hold anything, parentheses and line breaks too: the last ')' ends it.
    const std::size_t open = text->find('(');
    const std::size_t close = text->rfind(") ");
    if (open == std::string::npos || close == std::string::npos || text->size() < close + 5) {
        return std::nullopt;
    }
    constexpr std::size_t kParent = 0;
    constexpr std::size_t kSession = 2;
    constexpr std::size_t kFlags = 5;
    constexpr std::size_t kUserTime = 10;  // then system time, and both of the reaped children
    constexpr std::size_t kWaitStatus = 48;
    constexpr long long kExiting = 4;  // PF_EXITING
    const std::vector<long long> fields = fields_of(std::string_view(*text).substr(close + 4));
    if (fields.size() <= kWaitStatus) {
        return std::nullopt;
    }
    const auto time = [&fields](std::size_t first) {
        return time_of_ticks(fields[first] + fields[first + 1]);
    };
    return ProcessStat{.name = text->substr(open + 1, close - open - 1),
                       .state = (*text)[close + 2],
                       .parent = static_cast<int>(fields[kParent]),
                       .session = static_cast<int>(fields[kSession]),
                       .cpu = time(kUserTime),
                       .cpu_of_reaped = time(kUserTime + 2),
                       .is_exiting = (fields[kFlags] & kExiting) != 0,
                       .wait_status = static_cast<int>(fields[kWaitStatus])};
}

std::vector<int> children_of(int pid, const std::string& proc) {
    return (has_children_files() ? children_in(fmt::format("{}/{}/task", proc, pid))
                                 : children_by_scan(pid, proc))
        .value_or(std::vector<int>());
}

std::vector<int> processes_of_worker(int pid) {
    std::vector<int> found{pid};
    const std::vector<int> below = descendants_of(pid);
    found.insert(found.end(), below.begin(), below.end());
    const std::optional<ProcessStat> worker = stat_of(pid);
    if (!worker || worker->parent <= 1) {
        return found;
    }
    for (const int other : descendants_of(worker->parent)) {
        const std::optional<ProcessStat> stat = stat_of(other);
        if (stat && stat->session == pid &&
            std::find(found.begin(), found.end(), other) == found.end()) {
            found.push_back(other);
        }
    }
    return found;
}

std::optional<std::string> variable_of(int pid, std::string_view name) {
    const std::optional<std::string> environment = read_whole(fmt::format("/proc/{}/environ", pid));
    std::string_view rest = environment ? std::string_view(*environment) : std::string_view();
    while (!rest.empty()) {
        const std::string_view entry = take_until(rest, '\0');
        if (entry.starts_with(name) && entry.substr(name.size()).starts_with('=')) {
            return std::string(entry.substr(name.size() + 1));
        }
    }
    return std::nullopt;
}

std::optional<std::vector<int>> own_children() {
    return has_children_files() ? children_in("/proc/self/task")
                                : children_by_scan(getpid(), kProc);
}

std::vector<int> descendants_of(int pid, const std::string& proc) {
    std::vector<int> found = children_of(pid, proc);
    for (std::size_t i = 0; i < found.size() && found.size() < kDescendantsMax; ++i) {
        const std::vector<int> below = children_of(found[i], proc);
        found.insert(found.end(), below.begin(), below.end());
    }
    return found;
}

std::vector<int> threads_of(int pid) {
    return numbers_in(fmt::format("/proc/{}/task", pid));
}

std::vector<int> open_descriptors() {
    return numbers_in("/proc/self/fd");
}

bool has_handler(int pid, int signal) {
    const std::string text = status_line(pid, "SigCgt");
    std::uint64_t caught = 0;
    std::from_chars(text.data(), text.data() + text.size(), caught, 16);
    return (caught >> (signal - 1) & 1U) != 0;
}

int own_number_of(int pid) {
    // One number for each namespace that it is in, from the outermost to its own.
    const std::string numbers = status_line(pid, "NSpid");
    return whole_number<int>(std::string_view(numbers).substr(numbers.rfind('\t') + 1)).value_or(0);
}

std::string describe_process(int pid, int shown) {
    const std::optional<ProcessStat> stat = stat_of(pid);
    return stat ? fmt::format("{} ({}, state {})", shown, stat->name, stat->state)
                : fmt::format("{}", shown);
}

}  // namespace ddprun::agent
