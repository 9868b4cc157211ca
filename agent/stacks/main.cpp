// ddprun-stacks: saves the stacks of all threads of workers, one file for each. A program of its
// own, so that what never answers holds up no other program: its parent kills it.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "agent/process/children.hpp"
#include "agent/process/stacks_program.hpp"
#include "agent/stacks/flight_recorder.hpp"
#include "agent/stacks/kernel_stacks.hpp"
#include "agent/stacks/tools.hpp"
#include "base/error.hpp"
#include "base/os/read_files.hpp"
#include "base/take_until.hpp"
#include "base/whole_number.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace {

using namespace ddprun;

struct Worker {
    int rank = 0;
    int pid = 0;
    UniqueFd file;
};

std::optional<std::int64_t> number_of(std::string_view text) {
    const std::optional<std::int64_t> value = whole_number<std::int64_t>(text);
    return value.value_or(-1) >= 0 ? value : std::nullopt;
}

/// RANK:PID
std::optional<Worker> worker_of(std::string_view text) {
    const std::optional<std::int64_t> rank = number_of(take_until(text, ':'));
    const std::optional<std::int64_t> pid = number_of(text);
    if (!rank || !pid) {
        return std::nullopt;
    }
    return Worker{.rank = static_cast<int>(*rank), .pid = static_cast<int>(*pid)};
}

void write_text(const UniqueFd& file, const std::string& text) {
    (void)!write(file.get(), text.data(), text.size());
}

/// Debuggers are only for those whom the kernel lets trace others.
std::string tracing_note() {
    const std::string scope = read_whole("/proc/sys/kernel/yama/ptrace_scope").value_or("0");
    return scope.starts_with('0') || geteuid() == 0
               ? std::string()
               : fmt::format(
                     "kernel.yama.ptrace_scope is {}: py-spy, eu-stack and gdb may be "
                     "refused; 0 allows them\n",
                     scope.substr(0, 1));
}

/// Saves the kernel's view of all workers; then the records of their flight recorders; then, in the
/// time that is left, the findings of tools. A debugger holds a worker, which then writes no
/// record. Returns the exit code.
int save(const std::vector<Worker>& workers, const std::string& program,
         agent::FlightRecorders& recorders, Instant records_until, Instant deadline) {
    for (const Worker& worker : workers) {
        write_text(worker.file, fmt::format("rank {}, process {}\n\n", worker.rank, worker.pid));
        for (const int pid : agent::processes_of_worker(worker.pid)) {
            agent::write_kernel_stacks(
                pid, [&worker](const std::string& text) { write_text(worker.file, text); });
        }
    }
    for (const Worker& worker : workers) {
        recorders.ask(worker.rank, agent::processes_of_worker(worker.pid), worker.file.get());
    }
    recorders.collect(records_until);
    const std::string note = tracing_note();
    std::vector<agent::ToolQueue> queues;
    bool lacks_py_spy = false;
    for (const Worker& worker : workers) {
        agent::FoundTools found = agent::tools_for(worker.pid, program);
        const std::string missing = note + found.missing;
        write_text(worker.file, missing.empty() ? "" : missing + "\n");
        queues.push_back({.file = worker.file.get(), .tools = std::move(found.tools)});
        lacks_py_spy = lacks_py_spy || found.lacks_py_spy;
    }
    agent::run_tools(std::move(queues), deadline);
    return lacks_py_spy ? agent::kStacksWithoutPySpy : kExitSuccess;
}

int fail(const std::string& what) {
    fmt::print(stderr, "ddprun-stacks: {}\n", what);
    return kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
    const Instant begun = std::chrono::steady_clock::now();
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const auto milliseconds = arguments.size() > 1 ? number_of(arguments[1]) : std::nullopt;
    const auto bytes_max = arguments.size() > 2 ? number_of(arguments[2]) : std::nullopt;
    if (!milliseconds || !bytes_max || arguments.size() < 4) {
        return fail(
            "this program is started by ddprun: ddprun-stacks FOLDER MS BYTES PROGRAM RANK:PID...");
    }
    const std::string& folder = arguments[0];
    const std::string& program = arguments[3];
    // Only what a tool writes can be long; a tool that exceeds it dies of SIGXFSZ.
    const rlimit limit{.rlim_cur = static_cast<rlim_t>(*bytes_max),
                       .rlim_max = static_cast<rlim_t>(*bytes_max)};
    (void)setrlimit(RLIMIT_FSIZE, &limit);
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);  // a worker that goes while it is asked
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &child, nullptr);

    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
        return fail(system_error(errno, fmt::format("cannot make {}", folder)).what);
    }
    std::vector<Worker> workers;
    for (std::size_t i = 4; i < arguments.size(); ++i) {
        std::optional<Worker> worker = worker_of(arguments[i]);
        if (!worker) {
            return fail(fmt::format("{} is no RANK:PID", arguments[i]));
        }
        const std::string path = agent::stacks_file(folder, worker->rank);
        worker->file.reset(
            open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
        if (!worker->file.is_open()) {
            return fail(system_error(errno, fmt::format("cannot write {}", path)).what);
        }
        workers.push_back(std::move(*worker));
    }
    agent::FlightRecorders recorders(folder, *bytes_max);
    // PyTorch polls for the request once a second, which takes 1 s of the default of 2 s.
    const std::chrono::milliseconds time(*milliseconds);
    return save(workers, program, recorders, begun + time * 3 / 4, begun + time);
}
