#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

/// The project's Python with torch, for tests whose target defines DDPRUN_TORCH_PYTHON.
namespace ddprun::test {

/// Says so, aloud, where there is none.
inline bool is_torch_python_there() {
    if (std::string(DDPRUN_TORCH_PYTHON).empty()) {
        WARN("SKIPPED: no Python with torch was found, run scripts/setup.sh; nothing is compared");
        return false;
    }
    return true;
}

/// Runs `script`, a path below tests/; its exit code, -1 for a signal. `out`: the file that gets
/// its stdout; empty: ours does.
inline int run_torch_python(const std::string& script, std::vector<std::string> args,
                            const std::string& out = {}) {
    args.insert(args.begin(), {DDPRUN_TORCH_PYTHON, source_dir() + "/tests/" + script});
    std::vector<char*> argv;
    for (std::string& arg : args) {
        argv.push_back(arg.data());
    }
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    REQUIRE(::posix_spawn_file_actions_init(&actions) == 0);
    if (!out.empty()) {
        REQUIRE(::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(),
                                                   O_WRONLY | O_CREAT | O_TRUNC, 0600) == 0);
    }
    pid_t pid = -1;
    REQUIRE(::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ) == 0);
    ::posix_spawn_file_actions_destroy(&actions);
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace ddprun::test
