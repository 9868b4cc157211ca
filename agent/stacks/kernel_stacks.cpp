#include "agent/stacks/kernel_stacks.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "agent/process/children.hpp"
#include "base/os/read_files.hpp"
#include "base/take_until.hpp"

namespace ddprun::agent {

namespace {

/// A file of one line; "?" where this user may not read it.
std::string line_of(const std::string& path) {
    std::string text = read_whole(path).value_or("?");
    while (!text.empty() && (text.back() == '\n' || text.back() == '\0')) {
        text.pop_back();
    }
    return text;
}

std::string command_of(int pid) {
    std::string text = line_of(fmt::format("/proc/{}/cmdline", pid));
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
    return text;
}

/// Returns the function that it waits in; empty: it does not wait, or the kernel hides it.
std::string wait_channel(const std::string& folder) {
    const std::string name = line_of(folder + "/wchan");
    return name == "0" || name == "?" ? std::string() : name;
}

std::string indented(std::string_view text) {
    std::string lines;
    while (!text.empty()) {
        lines += fmt::format("      {}\n", take_until(text, '\n'));
    }
    return lines;
}

std::string thread_text(int pid, int thread) {
    const std::string folder = fmt::format("/proc/{}/task/{}", pid, thread);
    // A thread has the same file as a process; by its number the file is in /proc, too.
    const std::optional<ProcessStat> stat = stat_of(thread);
    if (!stat) {
        return fmt::format("  thread {} has ended\n", thread);
    }
    const std::string channel = wait_channel(folder);
    std::string text = fmt::format(
        "  thread {} {}, state {}{}\n    system call {}\n", thread, stat->name, stat->state,
        channel.empty() ? "" : ", waits in " + channel, line_of(folder + "/syscall"));
    if (const std::optional<std::string> stack = read_whole(folder + "/stack");
        stack && !stack->empty()) {
        text += "    kernel stack\n" + indented(*stack);
    }
    return text;
}

}  // namespace

void write_kernel_stacks(int pid, const std::function<void(const std::string&)>& write) {
    const std::optional<ProcessStat> stat = stat_of(pid);
    if (!stat) {
        write(fmt::format("process {} has ended\n\n", pid));
        return;
    }
    write(fmt::format("process {} {}, state {}, child of {}, has used {:.2f} s of CPU\n", pid,
                      stat->name, stat->state, stat->parent,
                      std::chrono::duration<double>(stat->cpu).count()));
    for (const int thread : threads_of(pid)) {
        write(thread_text(pid, thread));
    }
    // Last: the memory that holds it may be locked by what hangs.
    write(fmt::format("  command {}\n\n", command_of(pid)));
}

std::string program_of_process(int pid) {
    std::array<char, PATH_MAX> buffer;
    const ssize_t length =
        readlink(fmt::format("/proc/{}/exe", pid).c_str(), buffer.data(), buffer.size());
    const std::string path(buffer.data(), length > 0 ? static_cast<std::size_t>(length) : 0);
    return path.substr(path.rfind('/') + 1);
}

}  // namespace ddprun::agent
