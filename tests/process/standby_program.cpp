// The program of standby_test.cpp: prints what it finds, and exits with 3. With a second argument
// it first has a child, which leads no session, run the program with that as its pipe.

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "worker_runtime/env/standby.hpp"

int of_library();

namespace {

[[gnu::constructor(101)]] void wait_before_main() {
    static const char place_in_program = 0;
    ddprun::worker::wait_for_place(&place_in_program);
}

/// The program's own initialisers run in its place, too.
const std::string rank_at_start = std::getenv("RANK") == nullptr ? "none" : std::getenv("RANK");

void tell_descriptors() {
    DIR* const folder = opendir("/proc/self/fd");
    for (const dirent* entry = readdir(folder); entry != nullptr; entry = readdir(folder)) {
        const std::string name = entry->d_name;
        if (name.front() != '.' && name != std::to_string(dirfd(folder))) {
            std::printf("descriptor %s\n", name.c_str());
        }
    }
    closedir(folder);
}

void tell_status() {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        const bool is_of_all = line.starts_with("SigQ");  // signals of this user's processes
        if ((line.starts_with("Sig") && !is_of_all) || line.starts_with("Threads") ||
            line.starts_with("Umask") || line.starts_with("Cpus_allowed_list")) {
            std::printf("%s\n", line.c_str());
        }
    }
}

}  // namespace

int main(int argc, char** argv, char** variables) {
    if (argc > 2) {
        const pid_t child = fork();
        if (child == 0) {
            setenv("DDPRUN_IMPORTS", argv[2], 1);
            execl("/proc/self/exe", argv[0], argv[1], nullptr);
            _exit(1);
        }
        waitpid(child, nullptr, 0);
    }
    for (int i = 0; i < argc; ++i) {
        std::printf("argument %s\n", argv[i]);
    }
    for (char** variable = variables; *variable != nullptr; ++variable) {
        std::printf("variable %s\n", *variable);
    }
    for (const char* file : {"/proc/self/cmdline", "/proc/self/comm"}) {
        std::string text;
        std::getline(std::ifstream(file), text, '\n');
        std::replace(text.begin(), text.end(), '\0', ' ');
        std::printf("%s %s\n", file, text.c_str());
    }
    std::string score;
    std::getline(std::ifstream("/proc/self/oom_score_adj"), score);
    std::printf("rank at start %s\nleads %d\nkilled as %s\n", rank_at_start.c_str(),
                getsid(0) == getpid() ? 1 : 0, score.c_str());
    tell_descriptors();
    tell_status();
    return of_library();
}
