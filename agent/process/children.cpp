#include "agent/process/children.hpp"

#include <unistd.h>

#include <charconv>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "agent/process/read_files.hpp"

namespace ddprun::agent {

namespace {

std::optional<int> number_of(std::string_view text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) {
        return std::nullopt;
    }
    return value;
}

/// The numeric entries of a folder of /proc.
std::vector<int> numbers_in(const std::string& path) {
    std::vector<int> numbers;
    const Directory directory(opendir(path.c_str()));
    if (!directory) {
        return numbers;
    }
    while (const dirent* entry = readdir(directory.get())) {
        if (const std::optional<int> number = number_of(entry->d_name)) {
            numbers.push_back(*number);
        }
    }
    return numbers;
}

void append_pids(std::string_view text, std::vector<int>& pids) {
    while (!text.empty()) {
        const std::size_t space = text.find(' ');
        if (const std::optional<int> pid = number_of(text.substr(0, space))) {
            pids.push_back(*pid);
        }
        text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
    }
}

struct Stat {
    std::string name;
    char state = '?';
    int parent = 0;
};

/// The name may hold anything, parentheses and line breaks too: the last ')' ends it.
std::optional<Stat> read_stat(int pid) {
    const std::optional<std::string> text = read_whole(fmt::format("/proc/{}/stat", pid));
    if (!text) {
        return std::nullopt;
    }
    const std::size_t open = text->find('(');
    const std::size_t close = text->rfind(") ");
    if (open == std::string::npos || close == std::string::npos || text->size() < close + 5) {
        return std::nullopt;
    }
    const std::string_view rest = std::string_view(*text).substr(close + 4);
    return Stat{text->substr(open + 1, close - open - 1), (*text)[close + 2],
                number_of(rest.substr(0, rest.find(' '))).value_or(0)};
}

/// For kernels built without the `children` files: everybody whose parent we are.
std::vector<int> own_children_by_scan() {
    const int self = getpid();
    std::vector<int> children;
    for (const int candidate : numbers_in("/proc")) {
        const std::optional<Stat> stat = read_stat(candidate);
        if (stat && stat->parent == self) {
            children.push_back(candidate);
        }
    }
    return children;
}

bool has_children_files() {
    static const bool has = access("/proc/thread-self/children", R_OK) == 0;
    return has;
}

}  // namespace

std::vector<int> own_children() {
    if (!has_children_files()) {
        return own_children_by_scan();
    }
    std::vector<int> children;
    // Children belong to the thread that made or adopted them. The kernel walks the list from one
    // read to the next; only reaping, which is ours, could make it lose its place.
    for (const int thread : numbers_in("/proc/self/task")) {
        if (const auto text = read_whole(fmt::format("/proc/self/task/{}/children", thread))) {
            append_pids(*text, children);
        }
    }
    return children;
}

std::vector<int> open_descriptors() {
    return numbers_in("/proc/self/fd");
}

std::string describe_process(int pid) {
    const std::optional<Stat> stat = read_stat(pid);
    if (!stat) {
        return fmt::format("{}", pid);
    }
    return fmt::format("{} ({}, state {})", pid, stat->name, stat->state);
}

}  // namespace ddprun::agent
