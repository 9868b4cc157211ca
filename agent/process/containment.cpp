#include "agent/process/containment.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <vector>

#include "agent/process/children.hpp"

namespace ddprun::agent {

namespace {

constexpr std::size_t kDescribedMax = 8;

/// Makes this process what the level needs. Returns what is really in force.
ContainmentLevel take_level(std::optional<ContainmentLevel> wanted, bool has_cgroup) {
    const bool is_subreaper =
        wanted != ContainmentLevel::Session && prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0;
    if (wanted == ContainmentLevel::PidNamespace) {
        return *wanted;
    }
    if (has_cgroup) {
        return ContainmentLevel::Cgroup;
    }
    return is_subreaper ? ContainmentLevel::Keeper : ContainmentLevel::Session;
}

}  // namespace

Containment::Containment(std::set<int> excluded, std::optional<Cgroup> cgroup,
                         std::optional<ContainmentLevel> wanted, OuterPids outer_pids)
    : owner_(getpid()),
      excluded_(std::move(excluded)),
      cgroup_(std::move(cgroup)),
      outer_pids_(std::move(outer_pids)),
      level_(take_level(wanted, cgroup_.has_value())) {}

int Containment::enter() const noexcept {
    if (setsid() < 0) {
        return errno;
    }
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) {
        return errno;
    }
    // The parent may have died before the line above; then the kernel sends no signal.
    return getppid() == owner_ ? 0 : ESRCH;
}

void Containment::kill_all() {
    if (cgroup_ && !cgroup_->is_empty()) {
        cgroup_->kill_all();
    }
    // Only our own children: their numbers cannot be given to others before we reap them, and what
    // they have started becomes ours when they die. A worker's group goes with it at once.
    for (const int child : children()) {
        (void)kill(-child, SIGKILL);
        (void)kill(child, SIGKILL);  // Gone or not ours to kill: is_empty() shows it.
    }
}

bool Containment::is_empty() const {
    if (cgroup_ && !cgroup_->is_empty()) {
        return false;
    }
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) {
        return true;
    }
    const std::optional<std::vector<int>> living = own_children();
    return living && std::all_of(living->begin(), living->end(),
                                 [this](int child) { return excluded_.contains(child); });
}

std::string Containment::describe_rest() const {
    if (!own_children()) {
        return "somebody (no descriptor is left to look at the children of this process)";
    }
    std::string text;
    std::size_t described = 0;
    for (const int child : children()) {
        if (described == kDescribedMax) {
            return text + ", …";
        }
        text += described++ == 0 ? "process " : ", ";
        text += describe_process(child, outer_pid(child));
    }
    return text;
}

Result<void> Containment::begin_generation() {
    return cgroup_ ? cgroup_->begin_generation() : Result<void>();
}

void Containment::end_generation() {
    if (cgroup_) {
        cgroup_->end_generation();
    }
}

void Containment::release() {
    if (cgroup_) {
        cgroup_->remove();
    }
}

void Containment::exclude(int pid) {
    // Those that were reaped meanwhile are forgotten: their numbers may be given to others.
    if (const std::optional<std::vector<int>> living = own_children()) {
        std::erase_if(excluded_, [&living](int known) {
            return std::find(living->begin(), living->end(), known) == living->end();
        });
    }
    excluded_.insert(pid);
}

std::set<int> Containment::children() const {
    std::set<int> found;
    for (const int child : own_children().value_or(std::vector<int>())) {
        if (!excluded_.contains(child)) {
            found.insert(child);
        }
    }
    return found;
}

}  // namespace ddprun::agent
