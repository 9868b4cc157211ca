#include "agent/daemon/worker_activity.hpp"

#include <sys/syscall.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "base/os/read_files.hpp"

namespace ddprun::agent {

namespace {

// With no descriptor to look at, as time.sleep() of Python 3.10 and older calls select(), they wait
// for a time alone.
constexpr std::initializer_list<long> kSelects = {
    SYS_pselect6,
#ifdef SYS_select
    SYS_select,
#endif
};
constexpr std::initializer_list<long> kPolls = {
    SYS_ppoll,
#ifdef SYS_poll
    SYS_poll,
#endif
};

bool is_one_of(long number, std::initializer_list<long> calls) {
    return std::find(calls.begin(), calls.end(), number) != calls.end();
}

/// `call` as /proc/PID/syscall has it: the call's number, then its arguments.
bool is_sleep(const std::string& call) {
    std::istringstream words(call);
    long number = -1;
    std::string first;
    std::string second;
    words >> number >> first >> second;
    constexpr std::string_view kNone = "0x0";
    return number == SYS_nanosleep || number == SYS_clock_nanosleep ||
           (is_one_of(number, kSelects) && first == kNone) ||
           (is_one_of(number, kPolls) && second == kNone);
}

/// If this user may not read the call, the name of the kernel's function shows most sleeps.
bool sleeps(const std::string& folder) {
    const std::optional<std::string> call = read_whole(folder + "/syscall");
    return call ? is_sleep(*call)
                : read_whole(folder + "/wchan").value_or("").find("nanosleep") != std::string::npos;
}

}  // namespace

rdzv::Activity activity_of_process(int pid, const std::string& root) {
    using rdzv::Activity;
    const std::string folder = fmt::format("{}/proc/{}/task/{}", root, pid, pid);
    const std::string stat = read_whole(folder + "/stat").value_or("");
    // The name, in brackets, may have any character.
    const std::size_t name_end = stat.rfind(") ");
    switch (name_end == std::string::npos ? '?' : stat.at(name_end + 2)) {
        case 'R':
            return Activity::Computes;
        case 'D':
            return Activity::Blocked;
        case 'T':
        case 't':
            return Activity::Stopped;
        case 'S':
            return sleeps(folder) ? Activity::Sleeps : Activity::Waits;
        default:
            return Activity::Unknown;
    }
}

}  // namespace ddprun::agent
