#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/instant.hpp"

namespace ddprun::agent {

/// One process, as /proc shows it.
struct ProcessStat {
    std::string name;
    char state = '?';
    int parent = 0;
    int session = 0;
    Duration cpu{};            ///< used by its threads
    Duration cpu_of_reaped{};  ///< by its children that have ended, and theirs
    bool is_exiting = false;   ///< its first thread is on its way out, or has gone
    int wait_status = 0;       ///< as waitpid() will give it, once it exits; 0 if not ours to see
};

inline constexpr const char* kProc = "/proc";

/// Returns nothing if there is no such process, or no `proc`.
[[nodiscard]] std::optional<ProcessStat> stat_of(int pid, const std::string& proc = kProc);

/// Not an atomic snapshot: a process that is forked meanwhile may be missing.
[[nodiscard]] std::vector<int> children_of(int pid, const std::string& proc = kProc);
[[nodiscard]] std::vector<int> descendants_of(int pid, const std::string& proc = kProc);
[[nodiscard]] std::vector<int> threads_of(int pid);

/// The processes of a worker: itself first, then its descendants, and what has left them and stayed
/// in the worker's session.
[[nodiscard]] std::vector<int> processes_of_worker(int pid);

/// A variable of the environment that the process was started with; none also where that cannot be
/// read.
[[nodiscard]] std::optional<std::string> variable_of(int pid, std::string_view name);

/// Returns this process's children, also adopted ones and dead ones not yet reaped. Complete as
/// long as no other thread reaps. Returns nothing if no descriptor or memory is left to look with.
[[nodiscard]] std::optional<std::vector<int>> own_children();

/// This process's open descriptors.
[[nodiscard]] std::vector<int> open_descriptors();

/// Whether the program has a handler for `signal`; false if it is gone or cannot be examined.
[[nodiscard]] bool has_handler(int pid, int signal);

/// By which number the process knows itself, in its own PID namespace; 0 if it is gone.
[[nodiscard]] int own_number_of(int pid);

/// "1234 (python3, state D)", for people, who know `pid` by the number `shown`.
[[nodiscard]] std::string describe_process(int pid, int shown);

}  // namespace ddprun::agent
