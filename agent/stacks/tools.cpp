#include "agent/stacks/tools.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "agent/process/stacks_program.hpp"
#include "agent/stacks/kernel_stacks.hpp"
#include "base/os/start_program.hpp"
#include "base/os/unix_time.hpp"

namespace ddprun::agent {

namespace {

void write_text(int file, const std::string& text) {
    (void)!write(file, text.data(), text.size());
}

/// A queue at work.
struct Running {
    ToolQueue queue;
    std::size_t next = 0;
    int pid = 0;  ///< of the tool that runs; 0: none
};

/// Empty: as it should.
std::string how_ended(const siginfo_t& end) {
    if (end.si_code != CLD_EXITED && end.si_status == SIGXFSZ) {
        return "the rest is too much to be kept";
    }
    return has_succeeded(end) ? std::string() : "it " + end_text(end);
}

void start_next(Running& running, int nothing) {
    const int file = running.queue.file;
    while (running.pid == 0 && running.next < running.queue.tools.size()) {
        const Tool& tool = running.queue.tools[running.next++];
        write_text(file, fmt::format("--- {}\n", tool.title));
        ProgramSpec spec;
        spec.command = tool.command;
        spec.fds = {FdMapping{.from = nothing, .to = STDIN_FILENO},
                    FdMapping{.from = file, .to = STDOUT_FILENO},
                    FdMapping{.from = file, .to = STDERR_FILENO}};
        // In our group: who kills us for being late kills them.
        spec.has_own_session = false;
        const Result<StartedProgram> started = start_program(spec);
        if (started) {
            running.pid = started->pid;
        } else {
            write_text(file, started.error().what + "\n\n");
        }
    }
}

/// True if the tool of this queue has ended.
bool reap(Running& running) {
    siginfo_t end{};
    if (running.pid == 0 ||
        waitid(P_PID, static_cast<id_t>(running.pid), &end, WEXITED | WNOHANG) != 0 ||
        end.si_pid == 0) {
        return false;
    }
    running.pid = 0;
    const std::string how = how_ended(end);
    write_text(running.queue.file, how.empty() ? "\n" : fmt::format("({})\n\n", how));
    return true;
}

void give_up(Running& running) {
    if (running.pid != 0) {
        (void)kill(running.pid, SIGKILL);
        write_text(running.queue.file, "(it did not end in time and was killed)\n\n");
    }
    for (; running.next < running.queue.tools.size(); ++running.next) {
        write_text(running.queue.file, fmt::format("--- {}\n(there was no time left for it)\n\n",
                                                   running.queue.tools[running.next].title));
    }
}

/// Until a child has ended, or the deadline. False: that has come.
bool wait_for_child(Instant deadline) {
    using std::chrono::nanoseconds;
    const auto left = std::chrono::duration_cast<nanoseconds>(deadline - clock_now()).count();
    if (left <= 0) {
        return false;
    }
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    constexpr std::int64_t kSecond = 1'000'000'000;
    const timespec time{.tv_sec = left / kSecond, .tv_nsec = left % kSecond};
    (void)sigtimedwait(&child, nullptr, &time);
    return true;
}

}  // namespace

FoundTools tools_for(int pid, const std::string& program) {
    FoundTools found;
    std::vector<Tool>& tools = found.tools;
    std::string& missing = found.missing;
    const std::string number = std::to_string(pid);
    if (program_of_process(pid).starts_with("python")) {
        if (std::string path = path_of_py_spy(program); !path.empty()) {
            tools.push_back({"Python's stacks, by py-spy",
                             {std::move(path), "dump", "--nonblocking", "--pid", number}});
        } else {
            found.lacks_py_spy = true;
            missing += "no Python stacks: py-spy is not installed on this node\n";
        }
    }
    if (std::string path = stack_tool_in_path("eu-stack"); !path.empty()) {
        tools.push_back({"native stacks, by eu-stack", {std::move(path), "-p", number}});
    } else if (std::string debugger = stack_tool_in_path("gdb"); !debugger.empty()) {
        // Without scripts and the network: there are seconds only.
        tools.push_back({"native stacks, by gdb",
                         {std::move(debugger), "-nx", "-batch", "-iex",
                          "set debuginfod enabled off", "-iex", "set auto-load python-scripts off",
                          "-p", number, "-ex", "thread apply all backtrace"}});
    } else {
        missing += "no native stacks: neither eu-stack nor gdb is installed on this node\n";
    }
    return found;
}

void run_tools(std::vector<ToolQueue> queues, Instant deadline) {
    const UniqueFd nothing(open("/dev/null", O_RDWR | O_CLOEXEC));
    std::vector<Running> all;
    for (ToolQueue& queue : queues) {
        all.push_back(Running{.queue = std::move(queue)});
        start_next(all.back(), nothing.get());
    }
    const auto is_at_work = [](const Running& running) { return running.pid != 0; };
    while (std::any_of(all.begin(), all.end(), is_at_work)) {
        if (!wait_for_child(deadline)) {
            break;
        }
        for (Running& running : all) {
            if (reap(running)) {
                start_next(running, nothing.get());
            }
        }
    }
    for (Running& running : all) {
        give_up(running);
    }
}

}  // namespace ddprun::agent
