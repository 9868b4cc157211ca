// The worker that the keeper's tests start: does one thing and says what it saw.

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "agent/process/children.hpp"
#include "agent/process/saved_process_state.hpp"
#include "base/os/unique_fd.hpp"

namespace {

using namespace ddprun;

void say(const std::string& text) {
    if (write(STDOUT_FILENO, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        _exit(99);
    }
}

[[noreturn]] void wait_to_be_killed() {
    for (;;) {
        pause();
    }
}

/// Processes that ignore every polite signal: this one, its child, and unless `what` is "couple" a
/// daemon that has left its session and its parent. Each says 'r' once it runs; the daemon of
/// an "escape" says its number and a line break.
[[noreturn]] void start_family(std::string_view what) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
        (void)std::signal(signal, SIG_IGN);
    }
    if (fork() == 0) {
        say("r");
        wait_to_be_killed();
    }
    const pid_t between = what == "couple" ? -1 : fork();
    if (between == 0) {
        setsid();
        if (fork() == 0) {
            say(what == "escape" ? std::to_string(getpid()) + "\n" : "r");
            wait_to_be_killed();
        }
        _exit(0);
    }
    say("r");
    wait_to_be_killed();
}

void die_by(int signal) {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    (void)std::signal(signal, SIG_DFL);
    raise(signal);
}

void say_descriptors() {
    for (const int fd : agent::open_descriptors()) {
        // The listing's own descriptor is closed by now.
        if (access(fmt::format("/proc/self/fd/{}", fd).c_str(), F_OK) == 0 || fd <= 2) {
            say(fmt::format("{} ", fd));
        }
    }
}

void say_state() {
    int death_signal = 0;
    prctl(PR_GET_PDEATHSIG, &death_signal, 0, 0, 0);
    say(fmt::format("{} session={} death_signal={}\n",
                    agent::SavedProcessState::capture().to_text(), getsid(0) == getpid(),
                    death_signal));
}

/// Its own number, the one that /proc has for it, its parent's, and how many processes it sees.
void say_numbers() {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self");
    int seen = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        seen += std::atoi(entry.path().filename().c_str()) > 0 ? 1 : 0;
    }
    say(fmt::format("{} {} {} {}", getpid(), self.string(), getppid(), seen));
}

void say_page() {
    const UniqueFd page(open(std::getenv("DDPRUN_PAGE"), O_RDWR | O_CLOEXEC));
    char text[64];
    const ssize_t got = read(page.get(), text, sizeof text);
    say(got > 0 ? std::string(text, static_cast<std::size_t>(got)) : "nothing");
}

}  // namespace

int main(int argc, char** argv) {
    const std::string_view what = argc > 1 ? argv[1] : "";
    const char* value = argc > 2 ? argv[2] : "0";
    if (what == "exit") {
        return std::atoi(value);
    }
    if (what == "signal") {
        die_by(std::atoi(value));
    } else if (what == "descriptors") {
        say_descriptors();
    } else if (what == "state") {
        say_state();
    } else if (what == "variable") {
        say(std::getenv(value) == nullptr ? "(unset)" : std::getenv(value));
    } else if (what == "argument") {
        say(fmt::format("{}|{}", argv[0], value));
    } else if (what == "wait") {
        say("r");
        wait_to_be_killed();
    } else if (what == "leave_daemon") {
        if (fork() == 0) {
            setsid();
            say("r");
            wait_to_be_killed();
        }
    } else if (what == "family" || what == "couple" || what == "escape") {
        start_family(what);
    } else if (what == "numbers") {
        say_numbers();
    } else if (what == "read_page") {
        say_page();
    }
    return 0;
}
