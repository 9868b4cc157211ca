#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.hpp"
#include "base/tagged.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

/// Messages that an agent and its keeper exchange over their socketpair; agent/keeper/README.md is
/// the table. Strings are bytes of any value. A frame is a native u32 length and so many bytes of
/// body; both ends are built together and run on one machine.
namespace ddprun::agent {

/// How a worker ended: exactly one of exit_code, signal and exec_errno is set.
struct WorkerEnd {
    int pid = 0;  ///< 0 with exec_errno
    std::optional<int> exit_code;
    std::optional<int> signal;
    std::optional<int> exec_errno;  ///< the program was never run: errno of fork or exec
    bool core_dumped = false;

    bool operator==(const WorkerEnd&) const = default;
};

/// Stands for the generation of standbys: the number of the next one is not known yet. Rendezvous
/// count from 1.
inline const Generation kStandbyGeneration{std::numeric_limits<std::uint64_t>::max() - 1};

// -------------------------------------------------------------------------- agent to the keeper

/// The file that a worker reads as its stdin.
enum class WorkerStdin : std::uint8_t {
    Inherited,  ///< ddprun's own
    Nothing,    ///< /dev/null
    Terminal,   ///< its stdout, a terminal, which controls it
};

/// Start a worker. Descriptors go with it: its stdout, its stderr, the page if there is one, the
/// socket of a standby. Refused (Exited with EBUSY) while another generation is not proven empty;
/// standbys are none, the generation that starts beside them is theirs.
struct KeeperSpawn {
    Generation generation;
    LocalRank local_rank;
    std::vector<std::string> command;  ///< [0] without a slash is looked for in PATH
    Environment environment;           ///< set over the keeper's own
    std::vector<int> cpus;             ///< it may run on these only; empty: as the keeper
    /// Set to the path of the page that comes with it; empty: none comes.
    std::string page_variable;
    WorkerStdin stdin_from = WorkerStdin::Inherited;
    /// Set to the number that the socket, which comes with it, has in the standby; empty: none
    /// comes.
    std::string standby_variable = {};
    /// Set to the path of the pipe, which comes with it, that takes the names of the modules that
    /// it imports; empty: none comes.
    std::string imports_variable = {};

    bool operator==(const KeeperSpawn&) const = default;
};

/// The standby of this slot is a worker of `generation` from now on, which begins with it if there
/// was none. The page goes with it, if there is one. Answered by Adopted, or by the Exited of the
/// standby.
struct KeeperAdopt {
    Generation generation;
    LocalRank local_rank;
    bool has_page = false;

    bool operator==(const KeeperAdopt&) const = default;
};

/// Send `signal` to the process groups of these workers of the generation, as far as they run.
struct KeeperSignal {
    Generation generation;
    std::vector<LocalRank> local_ranks;
    int signal = 0;

    bool operator==(const KeeperSignal&) const = default;
};

/// Send `signal` to every worker of the generation that runs and has a handler for it: to the
/// program itself, not to its children. A worker without a handler would most likely die of it.
struct KeeperForward {
    Generation generation;
    int signal = 0;

    bool operator==(const KeeperForward&) const = default;
};

/// SIGKILL all that is left of the generation and prove that nothing is.
struct KeeperEmpty {
    Generation generation;

    bool operator==(const KeeperEmpty&) const = default;
};

/// The agent has made ddprun's own terminal, its stdin, raw. If the agent goes without having given
/// back the modes `before`, which shows in that they are still `raw`, the keeper does so.
struct KeeperTerminal {
    std::string before;  ///< TerminalModes::to_bytes(), as is the next
    std::string raw;

    bool operator==(const KeeperTerminal&) const = default;
};

using KeeperRequest = std::variant<KeeperSpawn, KeeperSignal, KeeperForward, KeeperEmpty,
                                   KeeperTerminal, KeeperAdopt>;

// -------------------------------------------------------------------------- keeper to the agent

/// The program runs: exec has succeeded.
struct KeeperStarted {
    Generation generation;
    LocalRank local_rank;
    int pid = 0;

    bool operator==(const KeeperStarted&) const = default;
};

struct KeeperExited {
    Generation generation;
    LocalRank local_rank;
    WorkerEnd end;

    bool operator==(const KeeperExited&) const = default;
};

/// Answers KeeperEmpty, after the Exited of every worker: no process of the generation is left.
struct KeeperEmptied {
    Generation generation;

    bool operator==(const KeeperEmptied&) const = default;
};

/// Answers KeeperEmpty: `what` is still there Limits::unkillable_after after SIGKILL. The keeper
/// goes on trying; an Emptied may still come.
struct KeeperNotEmptied {
    Generation generation;
    std::string what;

    bool operator==(const KeeperNotEmptied&) const = default;
};

/// Answers KeeperAdopt.
struct KeeperAdopted {
    Generation generation;
    LocalRank local_rank;
    int pid = 0;
    std::string page;  ///< its path; empty: there is none

    bool operator==(const KeeperAdopted&) const = default;
};

using KeeperEvent =
    std::variant<KeeperStarted, KeeperExited, KeeperEmptied, KeeperNotEmptied, KeeperAdopted>;

// ---------------------------------------------------------------------------------------- bytes

/// The keeper's end of the socketpair.
inline constexpr int kKeeperSocket = 3;
/// The folder of the cgroup, where there is one.
inline constexpr int kKeeperCgroup = 4;
/// In a PID namespace: the keeper's /proc/self/fdinfo in the agent's /proc.
inline constexpr int kKeeperOuterDescriptors = 5;
/// A standby's end of its socket.
inline constexpr int kStandbySocket = 3;
/// Body of one frame. The kernel allows a program 6 MiB of arguments and environment at most.
inline constexpr std::size_t kKeeperFrameBytesMax = std::size_t{8} << 20;
/// Unsent bytes of one side. A spawn beyond it is answered with ENOBUFS.
inline constexpr std::size_t kKeeperQueueBytesMax = std::size_t{64} << 20;

/// The whole frame, length included. LimitExceeded when the body is longer than a frame may be.
[[nodiscard]] Result<std::string> encode_frame(const KeeperRequest& request);
[[nodiscard]] Result<std::string> encode_frame(const KeeperEvent& event);

/// Decode one body; BadMessage when it is not exactly one message.
[[nodiscard]] Result<KeeperRequest> decode_request(std::string_view body);
[[nodiscard]] Result<KeeperEvent> decode_event(std::string_view body);

}  // namespace ddprun::agent
