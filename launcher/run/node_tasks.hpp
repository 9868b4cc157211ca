#pragma once

#include <string>

#include "base/instant.hpp"
#include "base/os/unique_fd.hpp"
#include "base/result.hpp"
#include "launcher/plan/launch_plan.hpp"

/// If a scheduler starts several ddprun on a node, one for each GPU, the first of them starts all
/// workers; the others wait and end with its exit code. They find each other by a socket in this
/// user's state folder, named by job, step and node. All of it blocks.
namespace ddprun::launcher {

/// Whether the scheduler has started more ddprun of this job on this node.
[[nodiscard]] bool has_other_tasks(const LaunchPlan& plan);

/// The path of that socket.
[[nodiscard]] Result<std::string> node_tasks_path(const Place& place);

/// Held by the first one. If it goes without end(), the others see that.
class FirstTask {
public:
    /// Removes what first ones that were killed have left in that folder.
    [[nodiscard]] static Result<FirstTask> open(std::string path);
    FirstTask(FirstTask&&) noexcept = default;
    FirstTask& operator=(FirstTask&&) = delete;
    ~FirstTask();

    /// Sends `others` processes the exit code: those that wait now, and those that come within
    /// `patience`, because a short job may be over before a slow one has begun.
    void end(int exit_code, int others, Milliseconds patience);

private:
    FirstTask(std::string path, UniqueFd listener);

    std::string path_;
    UniqueFd listener_;
};

/// The exit code of the first one, once it has ended; 128 + SIGKILL if it was killed. Waits
/// `patience` for it to come, and calls `say_waiting` when that takes longer than `say_after`.
[[nodiscard]] Result<int> follow_first_task(const std::string& path, Milliseconds patience,
                                            Milliseconds say_after, void (*say_waiting)());

}  // namespace ddprun::launcher
